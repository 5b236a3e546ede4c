"""Record batches: headers by hand, records only where a batch must change. Pure.

batch         the header of a batch, walks over batches, stamping
crc           the checksum of a batch whose header changes
rewrite       batches that no broker accepts unchanged, rewritten record by record
old_messages  messages of magic 0 and 1, converted to batches
merge         many small batches as a few larger batches
build         new batches: a single record, or fillers
late          the visible batches of a read_committed response
"""
