import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Prints the records that a Java consumer gets from a topic's first partition, poll by poll, from the start to the end.
 *
 * <p>Arguments: bootstrap, topic, and "each" to begin anew at each offset, or "on" to continue behind each poll. A line has
 * the sought offset, and the records of a poll: offset, and a hash of time, key, value and headers. A line without records
 * means that no record is left.
 */
public class ReadFromEachOffset {
    public static void main(String[] args) {
        Properties config = new Properties();
        config.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        config.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed");
        config.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 20);
        config.put(ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG, 4000);
        config.put(ConsumerConfig.FETCH_MAX_WAIT_MS_CONFIG, 20);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config, bytes, bytes)) {
            TopicPartition partition = new TopicPartition(args[1], 0);
            List<TopicPartition> all = List.of(partition);
            consumer.assign(all);
            long end = consumer.endOffsets(all).get(partition);
            long sought = consumer.beginningOffsets(all).get(partition);
            while (sought < end) {
                consumer.seek(partition, sought);
                List<ConsumerRecord<byte[], byte[]>> given = List.of();
                while (given.isEmpty() && consumer.position(partition) < end) {
                    given = consumer.poll(Duration.ofMillis(100)).records(partition);
                }
                StringBuilder said = new StringBuilder().append(sought);
                given.forEach(record -> said.append(" " + record.offset() + "=" + hash(record)));
                System.out.println(said);
                sought = args[2].equals("each") ? sought + 1 : consumer.position(partition);
            }
        }
    }

    private static int hash(ConsumerRecord<byte[], byte[]> record) {
        int read = Arrays.hashCode(record.key()) * 31 + Arrays.hashCode(record.value());
        return (read * 31 + record.headers().hashCode()) * 31 + Long.hashCode(record.timestamp());
    }
}
