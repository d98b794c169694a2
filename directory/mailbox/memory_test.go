package mailbox

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// BenchmarkResidentMail measures the memory that the counts of a full relay need: 100,000 messages in 1,000 mailboxes,
// each from 20 senders.
func BenchmarkResidentMail(b *testing.B) {
	const mails, boxes, senders = MaxAllMail, 1000, 20
	now := time.Now()
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		counts := &Counts{}
		err := counts.Load(now, func(add func(string, Mail)) error {
			for i := range mails {
				add(fmt.Sprintf("%016x%s", i, "abcdefghij"), Mail{
					Box:  wire.AgentID(fmt.Sprintf("am_the_box_of_%d", i%boxes)),
					From: wire.AgentID(fmt.Sprintf("am_the_sender_%d", i/boxes%senders)),
					Conv: wire.ConversationID(fmt.Sprintf("conv_0123456789_%d", i)), Size: 1000, Created: now,
				})
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric((float64(after.HeapAlloc)-float64(before.HeapAlloc))/mails, "heap-B/message")
		runtime.KeepAlive(counts)
	}
}
