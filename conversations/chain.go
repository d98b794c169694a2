package conversations

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/agentmesh/agentmesh/store"
)

// Link returns the chain hash of a transcript entry: SHA-256 over
//
//	"agentmesh-transcript-v1" NUL
//	prev                       32 bytes, the chain hash of the entry before, zero for the first
//	direction                  one byte, 1 for a message of ours, 0 for the peer's
//	time                       8 bytes, big-endian milliseconds of e.At since 1970
//	length of id, id           length in 8 bytes, big-endian; the message id
//	digest                     32 bytes, of the canonical bytes
//	length of raw, raw         length in 8 bytes, big-endian; the bytes as received or sent
//
// The hash covers everything in an entry except the key of a sealed payload and the entry's number, which follows from
// the chain.
func Link(prev [32]byte, e store.Entry) [32]byte {
	const headSize = 256 // enough for everything before raw, unless the id is unusually long
	head := append(make([]byte, 0, headSize), "agentmesh-transcript-v1\x00"...)
	head = append(head, prev[:]...)
	direction := byte(0)
	if e.Out {
		direction = 1
	}
	head = binary.BigEndian.AppendUint64(append(head, direction), uint64(e.At.UnixMilli()))
	head = binary.BigEndian.AppendUint64(head, uint64(len(e.MessageID)))
	head = append(append(head, e.MessageID...), e.Digest[:]...)
	head = binary.BigEndian.AppendUint64(head, uint64(len(e.Raw)))
	h := sha256.New()
	h.Write(head)
	h.Write(e.Raw)
	return [32]byte(h.Sum(head[:0]))
}

// Verify checks the entries that follow entry number n with chain hash prev, and returns the last chain hash. A
// changed, dropped, added or moved entry breaks the chain, and the error names the first such entry. Verify cannot
// detect missing entries at the end (see [Book.Check]), or a chain that an attacker with access to the store rewrote as
// a whole.
func Verify(prev [32]byte, n uint64, entries []store.Entry) ([32]byte, error) {
	for _, e := range entries {
		n++
		if e.N != n {
			return prev, fmt.Errorf("transcript entry %d has number %d", n, e.N)
		}
		prev = Link(prev, e)
		if e.Chain != prev {
			return prev, fmt.Errorf("transcript entry %d does not follow from the entry before it", n)
		}
	}
	return prev, nil
}
