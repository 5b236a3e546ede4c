// A client of franz-go, driven by lines on standard input (docs/history.md, "Driven clients").
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var (
	mu    sync.Mutex
	out   = bufio.NewWriterSize(os.Stdout, 1<<16)
	plain = strings.NewReplacer("\t", " ", "\n", " ")
	spoke = make(chan struct{}, 1)
)

// Sends words. Words that come during a write go out with the next write: all answers of a request at once.
func say(words ...any) {
	note(words...)
	select {
	case spoke <- struct{}{}:
	default:
	}
}

// Adds words that go out with the next words that are said.
func note(words ...any) {
	mu.Lock()
	defer mu.Unlock()
	for i, word := range words {
		if i > 0 {
			out.WriteByte('\t')
		}
		plain.WriteString(out, fmt.Sprint(word))
	}
	out.WriteByte('\n')
}

func flush() {
	mu.Lock()
	defer mu.Unlock()
	out.Flush()
}

func text(data []byte) string {
	if data == nil {
		return "-"
	}
	return base64.StdEncoding.EncodeToString(data)
}

func data(text string) []byte {
	if text == "-" {
		return nil
	}
	found, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		panic(err)
	}
	return found
}

// Returns the protocol's own name of an error, or the error's type if the protocol has no name.
func name(err error) string {
	var known *kerr.Error
	if errors.As(err, &known) {
		return known.Message
	}
	return fmt.Sprintf("%T", err)
}

func main() {
	signal.Ignore(syscall.SIGTERM) // the signal is for the process that drives this client
	go func() {
		for range spoke {
			flush()
		}
	}()
	defer flush()
	role, bootstrap, client := os.Args[1], os.Args[2], os.Args[3]
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.ClientID(client)}
	if role == "consumer" {
		read(append(options, chosen(os.Args[6:])...), os.Args[4], strings.Split(os.Args[5], ","))
	} else {
		write(options, client, os.Args[4], role == "transactional")
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		flush()
		os.Exit(1)
	}
}

// Ends this process soon, whatever the library waits for: the process that drives this client may be gone for good.
func endSoon() {
	time.AfterFunc(30*time.Second, func() { os.Exit(1) })
}

func lines() *bufio.Scanner {
	scanner := bufio.NewScanner(os.Stdin)
	scanner.Buffer(make([]byte, 1<<16), 1<<20)
	return scanner
}

// producers

func write(options []kgo.Opt, client, topic string, transactional bool) {
	ctx := context.Background()
	options = append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5*time.Millisecond))
	if transactional {
		options = append(options, kgo.TransactionalID(client))
	}
	cl, err := kgo.NewClient(options...)
	check(err)
	defer cl.Close()
	say("open", partitions(ctx, cl, topic))
	written := new(kgo.FirstErrPromise)
	for in := lines(); in.Scan(); {
		words := strings.Split(in.Text(), "\t")
		if words[0] == "send" {
			send(ctx, cl, topic, words, written.Promise())
			continue
		}
		say("done", words[0], end(ctx, cl, words[0], written))
		if words[0] == "begin" {
			written = new(kgo.FirstErrPromise)
		}
	}
	endSoon()
	check(cl.Flush(ctx))
}

func partitions(ctx context.Context, cl *kgo.Client, topic string) int {
	request := kmsg.NewPtrMetadataRequest()
	wanted := kmsg.NewMetadataRequestTopic()
	wanted.Topic = &topic
	request.Topics = append(request.Topics, wanted)
	answer, err := request.RequestWith(ctx, cl)
	check(err)
	check(kerr.ErrorForCode(answer.Topics[0].ErrorCode))
	return len(answer.Topics[0].Partitions)
}

func send(ctx context.Context, cl *kgo.Client, topic string, words []string, noted func(*kgo.Record, error)) {
	partition, err := strconv.Atoi(words[2])
	check(err)
	record := &kgo.Record{Topic: topic, Partition: int32(partition), Key: data(words[4]), Value: data(words[5])}
	if timestamp, err := strconv.ParseInt(words[3], 10, 64); err == nil && timestamp >= 0 {
		record.Timestamp = time.UnixMilli(timestamp)
	}
	if words[6] != "" {
		for _, header := range strings.Split(words[6], ",") {
			key, value, _ := strings.Cut(header, ":")
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: key, Value: data(value)})
		}
	}
	tag := words[1]
	cl.Produce(ctx, record, func(told *kgo.Record, err error) {
		noted(told, err)
		if err != nil {
			say("failed", tag, name(err), err)
		} else {
			say("acked", tag, told.Offset)
		}
	})
}

// Begins or ends a transaction. A commit aborts the transaction if a record was not written, as kgo's documentation demands.
func end(ctx context.Context, cl *kgo.Client, verb string, written *kgo.FirstErrPromise) string {
	var err error
	switch verb {
	case "begin":
		err = cl.BeginTransaction()
	case "commit":
		if err = cl.Flush(ctx); err != nil {
			break
		}
		if failed := written.Err(); failed == nil {
			err = cl.EndTransaction(ctx, kgo.TryCommit)
		} else if err = cl.EndTransaction(ctx, kgo.TryAbort); err == nil {
			return "aborted " + name(failed)
		}
	case "abort":
		if err = cl.Flush(ctx); err == nil {
			err = cl.EndTransaction(ctx, kgo.TryAbort)
		}
	}
	if err != nil {
		return name(err)
	}
	return "ok"
}

// a group member

type reader struct {
	cl       *kgo.Client
	commands chan string
	released chan struct{}
	stopping bool
}

// Returns this library's options for settings by Kafka's own names. A setting without an option is an error.
func chosen(settings []string) []kgo.Opt {
	var options []kgo.Opt
	for _, setting := range settings {
		switch name, value, _ := strings.Cut(setting, "="); name {
		case "group.protocol":
			if value == "consumer" {
				options = append(options, kgo.ServerSideBalancer())
			}
		case "group.instance.id":
			options = append(options, kgo.InstanceID(value))
		case "auto.offset.reset":
			if value == "latest" {
				options = append(options, kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
			}
		case "partition.assignment.strategy":
			if value == "cooperative-sticky" {
				options = append(options, kgo.Balancers(kgo.CooperativeStickyBalancer()))
			}
		default:
			check(fmt.Errorf("franz-go's driver knows no setting %q", name))
		}
	}
	return options
}

func read(options []kgo.Opt, group string, topics []string) {
	if strings.HasPrefix(topics[0], "^") { // librdkafka's mark of a pattern
		options = append(options, kgo.ConsumeRegex())
	}
	ctx := context.Background()
	r := &reader{commands: make(chan string, 1000), released: make(chan struct{}, 1)}
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.Balancers(kgo.RangeBalancer()),
		kgo.SessionTimeout(10*time.Second),
		kgo.HeartbeatInterval(time.Second),
		kgo.FetchMinBytes(16_384),
		kgo.FetchMaxWait(50*time.Millisecond),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, moved map[string][]int32) {
			say("assigned", named(moved))
		}),
		kgo.OnPartitionsRevoked(r.revoked),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, moved map[string][]int32) {
			say("lost", named(moved))
		}),
	}, options...)...)
	check(err)
	r.cl = cl
	check(cl.Ping(ctx))
	say("open", len(topics))
	go func() {
		for in := lines(); in.Scan(); {
			r.commands <- in.Text()
		}
		endSoon()
		r.commands <- "end"
	}()
	for !r.stopping {
		r.poll(ctx)
		r.drain(ctx)
	}
	cl.Close()
}

func (r *reader) poll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	fetches := r.cl.PollRecords(ctx, 1000)
	fetches.EachError(func(_ string, _ int32, err error) {
		var session *kgo.ErrGroupSession
		switch {
		case errors.Is(err, context.DeadlineExceeded):
		case errors.As(err, &session) && kerr.IsRetriable(session.Err): // the library goes on joining by itself
			say("notice", name(err), err)
		default:
			say("error", name(err), err)
		}
	})
	fetches.EachRecord(func(record *kgo.Record) {
		headers := make([]string, len(record.Headers))
		for i, header := range record.Headers {
			headers[i] = header.Key + ":" + text(header.Value)
		}
		note("record", record.Topic, record.Partition, record.Offset, text(record.Key), text(record.Value), strings.Join(headers, ","))
	})
	say("polled")
	r.cl.AllowRebalance()
}

func (r *reader) drain(ctx context.Context) {
	for {
		select {
		case line := <-r.commands:
			r.obey(ctx, line)
		default:
			return
		}
	}
}

func (r *reader) obey(ctx context.Context, line string) {
	verb, listed, _ := strings.Cut(line, "\t")
	if verb == "end" {
		r.stopping = true
		r.release()
		return
	}
	if listed != "" {
		r.commit(ctx, listed)
	}
	if verb == "release" {
		r.release()
	}
}

// Lets a revocation go on, and never blocks: the end of the input releases, too, and may come right behind a release.
// The goroutine that waits for the release is often the goroutine that reads both.
func (r *reader) release() {
	select {
	case r.released <- struct{}{}:
	default:
	}
}

func (r *reader) commit(ctx context.Context, listed string) {
	offsets := map[string]map[int32]kgo.EpochOffset{}
	for _, position := range strings.Split(listed, ",") {
		parts := strings.Split(position, ":")
		partition, _ := strconv.Atoi(parts[1])
		after, _ := strconv.ParseInt(parts[2], 10, 64)
		if offsets[parts[0]] == nil {
			offsets[parts[0]] = map[int32]kgo.EpochOffset{}
		}
		offsets[parts[0]][int32(partition)] = kgo.EpochOffset{Epoch: -1, Offset: after}
	}
	r.cl.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, err error) {
		if err == nil {
			for _, topic := range answer.Topics {
				for _, partition := range topic.Partitions {
					if code := kerr.ErrorForCode(partition.ErrorCode); code != nil {
						err = code
					}
				}
			}
		}
		if err != nil {
			say("committed", listed, name(err))
		} else {
			say("committed", listed, "")
		}
	})
}

func (r *reader) revoked(ctx context.Context, _ *kgo.Client, moved map[string][]int32) {
	if !r.stopping {
		say("revoking", named(moved))
		for waiting := true; waiting; {
			select {
			case line := <-r.commands: // commits that are under way come first
				r.obey(ctx, line)
			case <-r.released:
				waiting = false
			}
		}
	}
	say("revoked", named(moved))
}

func named(moved map[string][]int32) string {
	var all []string
	for topic, partitions := range moved {
		for _, partition := range partitions {
			all = append(all, fmt.Sprintf("%s:%d:-1", topic, partition))
		}
	}
	sort.Strings(all)
	return strings.Join(all, ",")
}
