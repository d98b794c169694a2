package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// Send calls op b.N times from n senders and reports percentiles of how long the calls took. The numbers i ascend in the
// order in which the calls begin, whichever sender makes them, so that a row whose key contains i is inserted at the end.
func Send(b *testing.B, n int, op func(i int) error) {
	b.Helper()
	var next atomic.Int64
	var all sync.WaitGroup
	took := make([][]time.Duration, n)
	b.ResetTimer()
	for sender := range n {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < b.N; i = int(next.Add(1)) - 1 {
				start := time.Now()
				if err := op(i); err != nil {
					b.Error(err)
					return
				}
				took[sender] = append(took[sender], time.Since(start))
			}
		})
	}
	all.Wait()
	b.StopTimer()
	ReportPercentiles(b, slices.Concat(took...))
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
}

// ReportPercentiles reports the median and the 99th percentile of durations, and sorts them.
func ReportPercentiles(b *testing.B, took []time.Duration) {
	b.Helper()
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
}

// peers is the number of peers of [Accept]. It is larger than the number of senders of [Send], so that two senders
// hardly ever write to the same conversation at the same time.
const peers = 192

// Accept stores message number i as a node stores a message that it accepts: the conversation, two entries of the
// transcript, the replay record and the record of the inbox.
func Accept(ctx context.Context, s store.Store, i int, now time.Time) error {
	return Acceptance{Message: 800, Answer: 700, Item: 1000}.Store(ctx, s, i, now)
}

// Acceptance has the sizes in bytes of what a node stores for a message.
type Acceptance struct{ Message, Answer, Item int }

// Store stores message number i, like [Accept].
func (a Acceptance) Store(ctx context.Context, s store.Store, i int, now time.Time) error {
	at := now.Add(time.Duration(i) * time.Millisecond)
	conv := store.Conversation{
		Key: benchConversation(i), Terms: []string{"state:active", "peer:" + fmt.Sprint(i%peers)},
		Open: true, Updated: at, Expires: at.Add(30 * day), Rev: store.Any,
	}
	id := fmt.Sprintf("msg_%x%016x", rand.Uint64(), i)
	conv.Body = fmt.Appendf(nil, `{"principal":"%s","state":"active","bytes":%d,"intent":"mesh.message","opened":"%s","last":"%[3]s","heard":"%s","heard_intent":"mesh.message"}`,
		conv.Key.Peer, i, at.Format(time.RFC3339Nano), id)
	raw, answer := a.message(a.Message, i, id, at), a.message(a.Answer, i, id+"r", at)
	_, err := s.Steps().Apply(ctx, store.Step{
		Conv:   &conv,
		Append: []store.Entry{{MessageID: id, At: at, Raw: raw}, {Out: true, MessageID: id + "r", At: at, Raw: answer}},
		Replay: &store.Replay{
			Sender: conv.Key.Peer, MessageID: id, Conv: conv.Key, Status: 200, Answer: answer, Expires: at.Add(8 * day),
		},
		Records: []store.Change{{Record: a.inboxRecord(i, "new", at)}},
		Now:     now,
	})
	return err
}

// message returns a message of about size bytes in the form in which nodes send it.
func (a Acceptance) message(size, i int, id string, at time.Time) []byte {
	conv := benchConversation(i)
	return fmt.Appendf(nil, `{"agentmesh":"0.1.0","message_id":"%s","conversation_id":"%s","from":"%s","to":"am_%024d","timestamp":"%s","intent":"mesh.message","payload":{"action":"deliver","message":{"body":"%s"}},"signature":"%s"}`,
		id, conv.ID, conv.Peer, peers, at.Format(time.RFC3339), Text(i, size-370), Text(-i, 88))
}

// Text returns n bytes of words that hardly repeat each other. It depends only on seed and n.
func Text(seed, n int) []byte {
	rng := rand.New(rand.NewPCG(uint64(seed), 3))
	b := make([]byte, 0, max(n, 0)+16)
	for len(b) < n {
		b = append(append(b, WordOf(rng.Uint64N(1<<32))...), ' ')
	}
	return b[:max(n, 0)]
}

// MarkRead changes the inbox record of message number i, as a node does when its owner reads the message.
func (a Acceptance) MarkRead(ctx context.Context, s store.Store, i int, now time.Time) error {
	rec := a.inboxRecord(i, "read", now.Add(time.Duration(i)*time.Millisecond))
	return s.Records().Apply(ctx, []store.Change{{Record: rec, IfRev: store.Any}}, now)
}

// inboxRecord returns the record of message number i in the inbox. Its key has the form of a node's ids: a number that
// grows, and one that looks random.
func (a Acceptance) inboxRecord(i int, state string, at time.Time) store.Record {
	conv := benchConversation(i)
	terms := []string{"state:" + state, "conv:" + conv.Peer + "/" + conv.ID}
	if state == "new" {
		terms = append(terms, "needs-owner")
	}
	key := fmt.Sprintf("in_%015x%08x", i, uint32(i)*2654435761)
	body := fmt.Appendf(nil, `{"id":"%s","state":"%s","kind":"message","peer":"%s","conversation_id":"%s","message_id":"%x","intent":"mesh.message","payload":{"action":"deliver","message":{"body":"%s"}},"verified":"signature","at":"%s","expires":"%s","digest":"`,
		key, state, conv.Peer, conv.ID, Text(i, 16), Text(i, a.Message-370), at.Format(time.RFC3339Nano), at.Add(30*day).Format(time.RFC3339Nano))
	body = append(append(body, Text(^i, a.Item-len(body)-2)...), `"}`...)
	return store.Record{NS: "inbox", Key: key, Body: body, Expires: at.Add(30 * day), Terms: terms}
}

// benchConversation returns the conversation of message number i. A conversation gets 32 messages.
func benchConversation(i int) store.ConvKey {
	return store.ConvKey{Peer: fmt.Sprintf("am_%024d", i%peers), ID: fmt.Sprintf("conv_%d", i/peers/32)}
}
