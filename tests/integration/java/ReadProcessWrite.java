import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes every record of a topic to the same partition of another topic, in transactions that also commit the offsets. The
 * program holds a consumer and a producer as an application does, without Streams.
 *
 * <p>Arguments: bootstrap, group, transactional id, input topic, output topic, and the group's protocol if it is not the
 * classic protocol. The program prints "committed" with the number of transactions so far, "aborted" with the reason, and
 * "died" with the reason where Kafka's documentation says that a producer cannot continue. SIGTERM ends the program between
 * two transactions, after the line "ended".
 */
public class ReadProcessWrite {
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final KafkaProducer<byte[], byte[]> producer;
    private final String written;

    ReadProcessWrite(String bootstrap, String group, String id, String read, String written, String protocol) {
        Properties reading = new Properties();
        reading.put("bootstrap.servers", bootstrap);
        reading.put("group.id", group);
        reading.put("enable.auto.commit", "false");
        reading.put("auto.offset.reset", "earliest");
        reading.put("isolation.level", "read_committed");
        reading.put("max.poll.records", "50");
        reading.put("group.protocol", protocol);
        if (protocol.equals("classic")) { // of the new one the coordinator decides it
            reading.put("heartbeat.interval.ms", "1000");
        }
        reading.put("key.deserializer", ByteArrayDeserializer.class);
        reading.put("value.deserializer", ByteArrayDeserializer.class);
        Properties writing = new Properties();
        writing.put("bootstrap.servers", bootstrap);
        writing.put("transactional.id", id);
        writing.put("key.serializer", ByteArraySerializer.class);
        writing.put("value.serializer", ByteArraySerializer.class);
        this.consumer = new KafkaConsumer<>(reading);
        this.producer = new KafkaProducer<>(writing);
        this.written = written;
        consumer.subscribe(List.of(read), new ConsumerRebalanceListener() { // else it rebalances in the background, too
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}
        });
        producer.initTransactions();
    }

    private void copy(ConsumerRecords<byte[], byte[]> found) {
        Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        producer.beginTransaction();
        for (ConsumerRecord<byte[], byte[]> record : found) {
            producer.send(new ProducerRecord<>(written, record.partition(), record.key(), record.value()));
            positions.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
        producer.commitTransaction();
    }

    /** Seeks back to the committed offsets, as every such application does after an abort. */
    private void goBack() {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (TopicPartition partition : consumer.assignment()) {
            if (committed.get(partition) == null) {
                consumer.seekToBeginning(List.of(partition));
            } else {
                consumer.seek(partition, committed.get(partition));
            }
        }
    }

    private void run(AtomicBoolean stopping) {
        int count = 0;
        while (!stopping.get()) {
            ConsumerRecords<byte[], byte[]> found = consumer.poll(Duration.ofMillis(100));
            if (found.isEmpty()) {
                continue;
            }
            try {
                copy(found);
                System.out.println("committed " + ++count);
            } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException fatal) {
                throw fatal;
            } catch (KafkaException failed) {
                System.out.println("aborted " + failed);
                producer.abortTransaction();
                goBack();
            }
        }
        consumer.close();
        producer.close();
    }

    public static void main(String[] args) {
        AtomicBoolean stopping = new AtomicBoolean();
        CountDownLatch ended = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping.set(true);
            try {
                ended.await(20, TimeUnit.SECONDS);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }));
        try {
            String protocol = args.length > 5 ? args[5] : "classic";
            new ReadProcessWrite(args[0], args[1], args[2], args[3], args[4], protocol).run(stopping);
            System.out.println("ended");
        } catch (RuntimeException error) {
            System.out.println("died " + error);
        }
        ended.countDown();
    }
}
