import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Begins transactions in a process and ends them in another process, as the exactly-once sink of Apache Flink does. The sink
 * keeps producer id and epoch in a checkpoint, and sets both by reflection in a producer that never asked for an id.
 *
 * <p>Arguments: {@code begin BOOTSTRAP TOPIC ID...} prints "begun ID PRODUCER EPOCH" for each transactional id and leaves the
 * transaction open. {@code end BOOTSTRAP HOW ID PRODUCER EPOCH ...}, with HOW commit or abort, prints "ended ID" or
 * "failed ID EXCEPTION" for each. {@code write BOOTSTRAP TOPIC ID PRODUCER EPOCH} continues an open transaction, aborts the
 * transaction where necessary, prints "aborted ID", and then prints "written ID" for a new transaction.
 */
public final class CommitFromElsewhere {
    public static void main(String[] words) throws ReflectiveOperationException {
        switch (words[0]) {
            case "begin" -> {
                for (int next = 3; next < words.length; next++) {
                    begin(words[1], words[2], words[next]);
                }
                Runtime.getRuntime().halt(0); // whatever a producer does when it is closed, a killed process does not
            }
            case "write" -> write(words[1], words[2], words[3], Long.parseLong(words[4]), Short.parseShort(words[5]));
            default -> {
                for (int at = 2; at < words.length; at += 4) {
                    long id = Long.parseLong(words[at + 2]);
                    end(words[at], words[1], words[at + 1], id, Short.parseShort(words[at + 3]));
                }
            }
        }
    }

    private static KafkaProducer<String, String> producer(String bootstrap, String name) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", name);
        settings.put("transaction.timeout.ms", 600_000);
        settings.put("max.block.ms", 15_000);
        settings.put("key.serializer", StringSerializer.class);
        settings.put("value.serializer", StringSerializer.class);
        return new KafkaProducer<>(settings);
    }

    private static void begin(String bootstrap, String topic, String name) throws ReflectiveOperationException {
        KafkaProducer<String, String> producer = producer(bootstrap, name);
        producer.initTransactions();
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, 0, null, name));
        producer.flush();
        Object identity = field(manager(producer), "producerIdAndEpoch");
        System.out.println("begun " + name + " " + field(identity, "producerId") + " " + field(identity, "epoch"));
    }

    private static void end(String how, String bootstrap, String name, long id, short epoch) throws ReflectiveOperationException {
        try (KafkaProducer<String, String> producer = producer(bootstrap, name)) {
            resume(producer, id, epoch);
            if (how.equals("commit")) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
            System.out.println("ended " + name);
        } catch (KafkaException failed) {
            System.out.println("failed " + name + " " + failed.getClass().getSimpleName() + " " + failed.getMessage());
        }
    }

    private static void write(String bootstrap, String topic, String name, long id, short epoch) throws ReflectiveOperationException {
        try (KafkaProducer<String, String> producer = producer(bootstrap, name)) {
            resume(producer, id, epoch);
            try {
                producer.send(new ProducerRecord<>(topic, 0, null, "never " + name));
                producer.commitTransaction();
                System.out.println("committed " + name);
            } catch (KafkaException failed) {
                producer.abortTransaction();
                System.out.println("aborted " + name);
            }
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "anew " + name));
            producer.commitTransaction();
            System.out.println("written " + name);
        } catch (KafkaException failed) {
            System.out.println("failed " + name + " " + failed.getClass().getSimpleName() + " " + failed.getMessage());
        }
    }

    /** Sets the state of {@code initTransactions} and {@code beginTransaction}, as Flink's FlinkKafkaInternalProducer does. */
    private static void resume(KafkaProducer<String, String> producer, long id, short epoch) throws ReflectiveOperationException {
        Object manager = manager(producer);
        synchronized (manager) {
            Object partitions = field(manager, "txnPartitionMap");
            transition(manager, "INITIALIZING");
            Method reset = partitions.getClass().getDeclaredMethod("reset");
            reset.setAccessible(true);
            reset.invoke(partitions);
            Object before = field(manager, "producerIdAndEpoch");
            Constructor<?> made = before.getClass().getDeclaredConstructor(long.class, short.class);
            made.setAccessible(true);
            set(manager, "producerIdAndEpoch", made.newInstance(id, epoch));
            transition(manager, "READY");
            transition(manager, "IN_TRANSACTION");
            set(manager, "transactionStarted", true);
        }
    }

    private static Object manager(KafkaProducer<String, String> producer) throws ReflectiveOperationException {
        return field(producer, "transactionManager");
    }

    private static Object field(Object of, String name) throws ReflectiveOperationException {
        return accessible(of, name).get(of);
    }

    private static void set(Object of, String name, Object value) throws ReflectiveOperationException {
        accessible(of, name).set(of, value);
    }

    private static Field accessible(Object of, String name) throws ReflectiveOperationException {
        Field field = of.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void transition(Object manager, String state) throws ReflectiveOperationException {
        Class<? extends Enum> states = (Class<? extends Enum>) Class.forName(manager.getClass().getName() + "$State");
        Method transition = manager.getClass().getDeclaredMethod("transitionTo", states);
        transition.setAccessible(true);
        transition.invoke(manager, Enum.valueOf(states, state));
    }
}
