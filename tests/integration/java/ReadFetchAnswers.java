import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;

import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.message.ResponseHeaderData;
import org.apache.kafka.common.protocol.ByteBufferAccessor;

/** Prints the content of Fetch answers as Kafka's own library reads them: a file has a version and a hex frame per line. */
public class ReadFetchAnswers {
    public static void main(String[] arguments) throws IOException {
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] words = line.split(" ");
            short version = Short.parseShort(words[0]);
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(words[1]), 4, words[1].length() / 2 - 4);
            ByteBufferAccessor input = new ByteBufferAccessor(bytes);
            new ResponseHeaderData(input, (short) 1);
            FetchResponseData read = new FetchResponseData(input, version);
            StringBuilder said = new StringBuilder("left=" + bytes.remaining());
            for (FetchResponseData.NodeEndpoint end : read.nodeEndpoints()) {
                said.append(" end=" + end.nodeId() + "," + end.host() + "," + end.port() + "," + end.rack());
            }
            for (FetchResponseData.FetchableTopicResponse topic : read.responses()) {
                for (FetchResponseData.PartitionData part : topic.partitions()) {
                    said.append(" leader=" + part.currentLeader().leaderId());
                    said.append(" records=" + part.records().sizeInBytes());
                }
            }
            System.out.println(said);
        }
    }
}
