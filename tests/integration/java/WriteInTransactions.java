import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Writes numbered values in transactions with a record per partition; SIGTERM ends the program between two transactions.
 * After a forced abort the program repeats the transaction, as Kafka's documentation demands. The program prints
 * "committed NUMBER", "aborted WHY" and "fatal WHY".
 *
 * <p>Arguments: bootstrap, topic, transactional id, number of partitions.
 */
public final class WriteInTransactions {
    public static void main(String[] words) {
        AtomicBoolean ending = new AtomicBoolean();
        Thread writer = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            ending.set(true);
            try {
                writer.join();
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }));
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", words[0],
            "transactional.id", words[2],
            "linger.ms", 0,
            // If the transaction becomes abortable during a commit, the commit notices after this time, 30 s by default.
            "request.timeout.ms", 3000,
            "key.serializer", StringSerializer.class,
            "value.serializer", StringSerializer.class);
        try (var producer = new KafkaProducer<String, String>(settings)) {
            producer.initTransactions();
            for (int number = 0; !ending.get(); ) {
                if (written(producer, words[1], words[2] + "-" + number, Integer.parseInt(words[3]))) {
                    System.out.println("committed " + number++);
                }
            }
        } catch (RuntimeException fatal) {
            System.out.println("fatal " + fatal);
        }
    }

    private static boolean written(KafkaProducer<String, String> producer, String topic, String value, int partitions) {
        try {
            producer.beginTransaction();
            for (int partition = 0; partition < partitions; partition++) {
                producer.send(new ProducerRecord<>(topic, partition, null, value));
            }
            producer.commitTransaction();
            return true;
        } catch (ProducerFencedException | InvalidProducerEpochException | AuthorizationException fatal) {
            throw fatal;
        } catch (KafkaException failed) {
            System.out.println("aborted " + failed);
            producer.abortTransaction();
            return false;
        }
    }
}
