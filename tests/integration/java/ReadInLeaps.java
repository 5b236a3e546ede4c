import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads a topic with changing plans: further on, back, elsewhere, less at a time, or with pauses; then once to the end.
 *
 * <p>Arguments: bootstrap, topic, partitions, isolation level, seed, leaps. Each value begins with "partition-offset:". A
 * record out of its partition's order, or with another record's value, ends the program with exit code 1. The last line
 * has the number of records read.
 */
public class ReadInLeaps {
    private static final Map<TopicPartition, Long> NEXT = new HashMap<>();
    private static long read;

    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        config.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, args[3]);
        config.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 100);
        config.put(ConsumerConfig.FETCH_MAX_WAIT_MS_CONFIG, 20);
        List<TopicPartition> all = new ArrayList<>();
        for (int index = 0; index < Integer.parseInt(args[2]); index++) {
            all.add(new TopicPartition(args[1], index));
        }
        Random dice = new Random(Long.parseLong(args[4]));
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config, bytes, bytes)) {
            consumer.assign(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            all.forEach(partition -> go(consumer, partition, 0));
            for (int leap = 0; leap < Integer.parseInt(args[5]); leap++) {
                TopicPartition one = all.get(dice.nextInt(all.size()));
                switch (dice.nextInt(5)) {
                    case 0 -> go(consumer, one, (long) (dice.nextDouble() * ends.get(one)));
                    case 1 -> consumer.pause(List.of(one));
                    case 2 -> consumer.resume(consumer.paused());
                    case 3 -> Thread.sleep(dice.nextInt(800));
                    default -> { }
                }
                for (int poll = dice.nextInt(30); poll > 0; poll--) {
                    take(consumer);
                }
            }
            consumer.resume(consumer.paused());
            all.forEach(partition -> go(consumer, partition, 0));
            long before = read;
            while (all.stream().anyMatch(partition -> consumer.position(partition) < ends.get(partition))) {
                take(consumer);
            }
            System.out.println("read " + (read - before) + " of " + read);
        }
    }

    private static void go(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition, long offset) {
        consumer.seek(partition, offset);
        NEXT.put(partition, offset);
    }

    private static void take(KafkaConsumer<byte[], byte[]> consumer) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(20))) {
            TopicPartition partition = new TopicPartition(record.topic(), record.partition());
            String wanted = record.partition() + "-" + NEXT.get(partition) + ":";
            String begin = new String(record.value(), 0, wanted.length(), StandardCharsets.US_ASCII);
            if (!begin.equals(wanted)) {
                System.out.println("wanted " + wanted + " given " + begin);
                System.exit(1);
            }
            NEXT.put(partition, record.offset() + 1);
            read++;
        }
    }
}
