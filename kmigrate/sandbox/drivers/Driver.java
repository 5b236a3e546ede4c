// A client of Kafka's own library, driven by lines on standard input (docs/history.md, "Driven clients").

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class Driver {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static final StringBuilder SAID = new StringBuilder();
    private static final BufferedReader IN =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8), 1 << 16);

    /** Sends words. Words that come during a write go out with the next write: all answers of a request at once. */
    private static void say(Object... words) {
        synchronized (SAID) {
            note(words);
            SAID.notifyAll();
        }
    }

    /** Adds words that go out with the next words that are said. */
    private static void note(Object... words) {
        synchronized (SAID) {
            for (int i = 0; i < words.length; i++) {
                String word = String.valueOf(words[i]);
                SAID.append(i > 0 ? "\t" : "").append(plain(word) ? word : word.replaceAll("[\t\n\r]", " "));
            }
            SAID.append('\n');
        }
    }

    private static boolean plain(String word) {
        return word.indexOf('\t') < 0 && word.indexOf('\n') < 0 && word.indexOf('\r') < 0;
    }

    private static void speak() {
        while (true) {
            synchronized (SAID) {
                while (SAID.length() == 0) {
                    try {
                        SAID.wait();
                    } catch (InterruptedException interrupted) {
                        return;
                    }
                }
            }
            flush();
        }
    }

    private static synchronized void flush() {
        String words;
        synchronized (SAID) {
            words = SAID.toString();
            SAID.setLength(0);
        }
        OUT.print(words);
        OUT.flush();
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "-" : Base64.getEncoder().encodeToString(bytes);
    }

    private static byte[] bytes(String text) {
        return text.equals("-") ? null : Base64.getDecoder().decode(text);
    }

    public static void main(String[] args) throws Exception {
        String role = args[0];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[1]);
        settings.put("client.id", args[2]);
        Thread mouth = new Thread(Driver::speak, "words");
        mouth.setDaemon(true);
        mouth.start();
        try {
            if (role.equals("consumer")) {
                for (String setting : List.of(args).subList(5, args.length)) {
                    settings.put(setting.substring(0, setting.indexOf('=')), setting.substring(setting.indexOf('=') + 1));
                }
                new Reader(settings, args[3], List.of(args[4].split(","))).run();
            } else {
                write(settings, args[3], role.equals("transactional"));
            }
        } finally {
            flush();
        }
    }

    /** Ends this process soon, whatever the library waits for: the process that drives this client may be gone for good. */
    private static void endSoon() {
        Thread last = new Thread(() -> {
            try {
                Thread.sleep(30_000);
            } catch (InterruptedException interrupted) {
                // end at once
            }
            Runtime.getRuntime().halt(1);
        });
        last.setDaemon(true);
        last.start();
    }

    // producers

    private static void write(Properties settings, String topic, boolean transactional) throws Exception {
        settings.put("acks", "all");
        settings.put("linger.ms", "5");
        settings.put("key.serializer", ByteArraySerializer.class);
        settings.put("value.serializer", ByteArraySerializer.class);
        if (transactional) {
            settings.put("transactional.id", settings.get("client.id"));
        }
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            if (transactional) {
                producer.initTransactions();
            }
            say("open", producer.partitionsFor(topic).size());
            for (String line = IN.readLine(); line != null; line = IN.readLine()) {
                String[] words = line.split("\t", -1);
                if (words[0].equals("send")) {
                    send(producer, topic, words);
                } else {
                    say("done", words[0], end(producer, words[0]));
                }
            }
            endSoon();
        }
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, String topic, String[] words) {
        List<Header> headers = new ArrayList<>();
        for (String header : words[6].isEmpty() ? new String[0] : words[6].split(",")) {
            String[] pair = header.split(":");
            headers.add(new RecordHeader(pair[0], bytes(pair[1])));
        }
        Long timestamp = words[3].equals("-1") ? null : Long.valueOf(words[3]);
        String tag = words[1];
        try {
            producer.send(
                new ProducerRecord<>(topic, Integer.valueOf(words[2]), timestamp, bytes(words[4]), bytes(words[5]), headers),
                (told, error) -> {
                    if (error == null) {
                        say("acked", tag, told.offset());
                    } else {
                        say("failed", tag, error.getClass().getSimpleName(), error.getMessage());
                    }
                });
        } catch (KafkaException error) {
            say("failed", tag, error.getClass().getSimpleName(), error.getMessage());
        }
    }

    private static String end(KafkaProducer<byte[], byte[]> producer, String verb) {
        while (true) {
            try {
                switch (verb) {
                    case "begin" -> producer.beginTransaction();
                    case "commit" -> producer.commitTransaction();
                    case "abort" -> producer.abortTransaction();
                    default -> throw new IllegalArgumentException(verb);
                }
                return "ok";
            } catch (TimeoutException | InterruptException again) {
                // the same call is repeated until its outcome is known
            } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException fatal) {
                return fatal.getClass().getSimpleName();
            } catch (KafkaException failed) {
                if (verb.equals("commit")) {
                    producer.abortTransaction();
                    return "aborted " + failed.getClass().getSimpleName();
                }
                return failed.getClass().getSimpleName();
            }
        }
    }

    // a group member

    private static final class Reader implements ConsumerRebalanceListener {
        private final LinkedBlockingQueue<String> commands = new LinkedBlockingQueue<>();
        private final KafkaConsumer<byte[], byte[]> consumer;
        private final List<String> topics;
        private final Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        private volatile boolean stopping;

        Reader(Properties settings, String group, List<String> topics) {
            settings.put("group.id", group);
            settings.put("enable.auto.commit", "false");
            settings.putIfAbsent("auto.offset.reset", "earliest");
            settings.put("isolation.level", "read_committed");
            if (!"consumer".equals(settings.getProperty("group.protocol"))) { // else the coordinator decides these settings
                settings.putIfAbsent("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
                settings.put("session.timeout.ms", "10000");
                settings.put("heartbeat.interval.ms", "1000");
            }
            settings.put("fetch.min.bytes", "16384");
            settings.put("fetch.max.wait.ms", "50");
            settings.put("max.poll.records", "1000");
            settings.put("key.deserializer", ByteArrayDeserializer.class);
            settings.put("value.deserializer", ByteArrayDeserializer.class);
            this.consumer = new KafkaConsumer<>(settings);
            this.topics = topics;
        }

        void run() {
            consumer.listTopics();
            say("open", topics.size());
            Thread ears = new Thread(this::listen, "commands");
            ears.setDaemon(true);
            ears.start();
            if (topics.get(0).startsWith("^")) { // as in librdkafka; the coordinator matches (KIP-848)
                consumer.subscribe(new SubscriptionPattern(topics.get(0)), this);
            } else {
                consumer.subscribe(topics, this);
            }
            while (!stopping) {
                try {
                    ConsumerRecords<byte[], byte[]> found = consumer.poll(Duration.ofMillis(100));
                    for (ConsumerRecord<byte[], byte[]> record : found) {
                        tell(record);
                    }
                    say("polled");
                } catch (KafkaException error) {
                    say("error", error.getClass().getSimpleName(), error.getMessage());
                }
                for (String line = commands.poll(); line != null; line = commands.poll()) {
                    obey(line);
                }
            }
            next.keySet().retainAll(consumer.assignment());
            commit(named(next), next); // records that were reported since the last commit
            consumer.close();
        }

        private void listen() {
            try {
                for (String line = IN.readLine(); line != null; line = IN.readLine()) {
                    commands.add(line);
                }
            } catch (java.io.IOException gone) {
                // the same as the end of the input
            }
            commands.add("end");
            endSoon();
        }

        private void tell(ConsumerRecord<byte[], byte[]> record) {
            StringBuilder headers = new StringBuilder();
            for (Header header : record.headers()) {
                headers.append(headers.length() > 0 ? "," : "").append(header.key()).append(':').append(text(header.value()));
            }
            next.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
            note("record", record.topic(), record.partition(), record.offset(), text(record.key()), text(record.value()), headers);
        }

        private boolean obey(String line) {
            String[] words = line.split("\t", -1);
            if (words[0].equals("end")) {
                stopping = true;
                return true;
            }
            Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
            for (String position : words[1].isEmpty() ? new String[0] : words[1].split(",")) {
                String[] parts = position.split(":");
                positions.put(
                    new TopicPartition(parts[0], Integer.parseInt(parts[1])), new OffsetAndMetadata(Long.parseLong(parts[2])));
            }
            commit(words[1], positions);
            return words[0].equals("release");
        }

        private void commit(String listed, Map<TopicPartition, OffsetAndMetadata> positions) {
            if (positions.isEmpty()) {
                return;
            }
            try {
                consumer.commitSync(positions);
                say("committed", listed, "");
            } catch (KafkaException error) {
                say("committed", listed, error.getClass().getSimpleName());
            }
        }

        private static String named(Map<TopicPartition, OffsetAndMetadata> positions) {
            return positions.entrySet().stream()
                .map(at -> at.getKey().topic() + ":" + at.getKey().partition() + ":" + at.getValue().offset())
                .sorted().collect(Collectors.joining(","));
        }

        private static String named(Collection<TopicPartition> partitions) {
            return partitions.stream().map(p -> p.topic() + ":" + p.partition() + ":-1").sorted().collect(Collectors.joining(","));
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            say("assigned", named(partitions));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            if (partitions.isEmpty()) {
                return;
            }
            if (!stopping) {
                say("revoking", named(partitions));
                try {
                    while (!obey(commands.take())) {
                        // commits that are under way come first
                    }
                } catch (InterruptedException interrupted) {
                    Thread.currentThread().interrupt();
                }
            }
            next.keySet().removeAll(partitions);
            say("revoked", named(partitions));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            next.keySet().removeAll(partitions);
            say("lost", named(partitions));
        }
    }
}
