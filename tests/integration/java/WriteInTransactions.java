import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Writes numbered values in transactions with a record per partition; SIGTERM ends the program between two transactions.
 * After a forced abort the program repeats the transaction, as Kafka's documentation demands. The program prints
 * "committed NUMBER", "aborted WHY" and "fatal WHY".
 *
 * <p>Arguments: bootstrap, topic, transactional id, number of partitions; then "javadoc" if the program shall end at
 * the errors at which the example in KafkaProducer's Javadoc ends.
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
        boolean asInJavadoc = words.length > 4 && words[4].equals("javadoc");
        try (var producer = new KafkaProducer<String, String>(settings)) {
            producer.initTransactions();
            for (int number = 0; !ending.get(); ) {
                try {
                    write(producer, words[1], words[2] + "-" + number, Integer.parseInt(words[3]));
                    System.out.println("committed " + number++);
                    Thread.sleep(80); // More transactions would prove no more, and cost the machine's time.
                } catch (KafkaException failed) {
                    if (asInJavadoc ? endsInJavadoc(failed) : ends(failed)) {
                        throw failed;
                    }
                    System.out.println("aborted " + (failed.getCause() == null ? failed : failed.getCause()));
                    producer.abortTransaction();
                }
            }
        } catch (RuntimeException | InterruptedException fatal) {
            System.out.println("fatal " + fatal);
        }
    }

    private static void write(KafkaProducer<String, String> producer, String topic, String value, int partitions) {
        producer.beginTransaction();
        for (int partition = 0; partition < partitions; partition++) {
            producer.send(new ProducerRecord<>(topic, partition, null, value));
        }
        producer.commitTransaction();
    }

    private static boolean ends(KafkaException failed) {
        return failed instanceof ProducerFencedException
            || failed instanceof InvalidProducerEpochException
            || failed instanceof AuthorizationException;
    }

    private static boolean endsInJavadoc(KafkaException failed) {
        return failed instanceof ProducerFencedException
            || failed instanceof OutOfOrderSequenceException
            || failed instanceof AuthorizationException;
    }
}
