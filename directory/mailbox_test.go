package directory

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// storeFake stores mail without content in the mailbox of a card.
func (w *world) storeFake(box store.Card, from wire.AgentID, raw string) error {
	m := mailbox.Mail{Box: wire.AgentID(box.ID), From: from, Size: len(raw)}
	_, err := w.reg.relay.Queue(w.t.Context(), m, []byte(raw), nil)
	return err
}

func (w *world) card(id string) store.Card {
	w.t.Helper()
	c, err := w.reg.cards.Get(w.t.Context(), id, wire.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// TestMailboxBounds: of 20,000 messages to one mailbox, 500 are stored. One sender has at most a tenth of them, and
// all unknown senders together have a tenth (AM-66, AM-68).
func TestMailboxBounds(t *testing.T) {
	w := newRelayWorld(t)
	now, box := wire.Now(), w.card("am_alice")
	kept, limited, full := 0, 0, 0
	const many = 20_000
	for i := range many {
		from := wire.AgentID("")
		if i%40 < 30 {
			from = wire.AgentID(fmt.Sprint("am_", i%40))
		}
		switch err := w.storeFake(box, from, "{}"); {
		case err == nil:
			kept++
		case errors.Is(err, wire.ErrRateLimited):
			limited++
		case errors.Is(err, wire.ErrUnavailable):
			full++
		default:
			t.Fatal(err)
		}
	}
	if kept != mailbox.MaxMail || limited+full != many-mailbox.MaxMail || limited == 0 || full == 0 {
		t.Errorf("%d kept, %d limited, %d found it full", kept, limited, full)
	}
	rows, err := w.reg.recs.List(t.Context(), mailbox.MailNS, "box:am_alice", "", 1000, now)
	if err != nil {
		t.Fatal(err)
	}
	list, err := moderation.Decode[mailbox.Mail](rows.Records)
	if err != nil || len(list) != mailbox.MaxMail {
		t.Fatalf("%d in the mailbox, %v", len(list), err)
	}
	bySender := map[wire.AgentID]int{}
	for _, m := range list {
		bySender[m.From]++
	}
	for from, n := range bySender {
		if n > mailbox.MaxMail/mailbox.SenderDivisor {
			t.Errorf("%q has %d", from, n)
		}
	}
	if bySender[""] != mailbox.MaxMail/mailbox.SenderDivisor {
		t.Errorf("strangers have %d, want %d", bySender[""], mailbox.MaxMail/mailbox.SenderDivisor)
	}
	want(t, w.do("POST", "/v1/mailbox/am_alice", testMessage("x", "am_bob", "am_alice")), 503, "AGENT_UNAVAILABLE")
	if got := w.do("POST", "/v1/mailbox/am_alice2", testMessage("y", "am_bob", "am_alice2")); got.Code != http.StatusAccepted {
		t.Errorf("another mailbox = %d", got.Code)
	}
	// A reader that never acknowledges gets the same page each time.
	first := w.mail(alice, "agent_id=am_alice&limit=100000")
	for range 100 {
		if got := w.mail(alice, "agent_id=am_alice&limit=100000"); len(got) != mailbox.MaxPage || got[0].RelayID != first[0].RelayID || got[99].RelayID != first[99].RelayID {
			t.Fatalf("a page has %d", len(got))
		}
	}
	if all := w.countMail(); all.N != mailbox.MaxMail+1 {
		t.Errorf("%d messages wait", all.N)
	}
	// An acknowledged message makes room for its sender and leaves no rows.
	for _, item := range first {
		want(t, w.do("POST", "/v1/relay/"+item.RelayID+"/ack", "", withBearer(alice)...), 200, "")
	}
	if err := w.storeFake(box, list[0].From, "{}"); err != nil {
		t.Errorf("with room in the mailbox: %v", err)
	}
	if rows, err := w.reg.recs.List(t.Context(), mailbox.MailNS, "", "", 1000, now); err != nil || len(rows.Records) != mailbox.MaxMail+1-len(first)+1 {
		t.Errorf("%d rows are kept, %v", len(rows.Records), err)
	}
}

// TestLargeMail: limits count bytes too, and a page ends when it is large.
func TestLargeMail(t *testing.T) { // AM-68
	w := newRelayWorld(t)
	box, n := w.card("am_alice"), 0
	for i := range 100 {
		if err := w.storeFake(box, wire.AgentID(fmt.Sprint("am_", i%2)), `{"x":"`+strings.Repeat("x", wire.MaxMessage-8)+`"}`); err == nil {
			n++
		}
	}
	if want := 2 * (mailbox.MaxMailBytes / mailbox.SenderDivisor / wire.MaxMessage); n != want {
		t.Errorf("two senders left %d large messages, want %d", n, want)
	}
	if got, want := len(w.mail(alice, "limit=100")), maxPageBytes/wire.MaxMessage; got != want {
		t.Errorf("a page has %d large messages, want %d", got, want)
	}
}

// TestMailUsageAfterRestart: a restarted process counts the stored mail.
func TestMailUsageAfterRestart(t *testing.T) {
	w := newRelayWorld(t)
	for i := range mailbox.MaxMail + mailbox.MaxMail/2 { // more than a page of the store, in two mailboxes
		box := w.card([]string{"am_alice", "am_carol"}[i%2])
		if err := w.storeFake(box, wire.AgentID(fmt.Sprint("am_", i%20)), "{}"); err != nil {
			t.Fatal(err)
		}
	}
	before := w.countMail()
	if after := newWorldOver(t, w.store).countMail(); after != before || after.N != mailbox.MaxMail+mailbox.MaxMail/2 {
		t.Errorf("after a restart %+v are counted, before %+v", after, before)
	}
}

// TestSameMailTwice: a captured message that is sent again and again is stored once, even with different white space,
// so it cannot use up its sender's share.
func TestSameMailTwice(t *testing.T) { // THREATS 4, 26
	synctest.Test(t, func(t *testing.T) {
		w := newRelayWorld(t)
		message := testMessage("1", "am_bob", "am_alice")
		id := wantReceipt(t, w.do("POST", "/v1/mailbox/am_alice", message), 202)
		var same sync.WaitGroup
		for i := range 100 {
			same.Go(func() {
				variant := strings.Replace(message, `,"`, strings.Repeat(" ", i)+`,"`, 1)
				if got := wantReceipt(t, w.do("POST", "/v1/mailbox/am_alice", variant), 202); got != id {
					t.Errorf("receipt %s, want %s", got, id)
				}
			})
		}
		same.Wait()
		if got := wantReceipt(t, w.do("POST", "/v1/relay", message, withBearer(bob)...), 201); got != id {
			t.Errorf("receipt %s, want %s", got, id)
		}
		if got := w.mail(alice, ""); len(got) != 1 || string(got[0].Message) != message {
			t.Errorf("kept: %v", got)
		}
		// The same holds after it was read, until its timestamp is too old (AM-20).
		want(t, w.do("POST", "/v1/relay/"+id+"/ack", "", withBearer(alice)...), 200, "")
		time.Sleep(15 * time.Minute)
		wantReceipt(t, w.do("POST", "/v1/mailbox/am_alice", message), 202)
		if got := w.mail(alice, ""); len(got) != 0 {
			t.Errorf("it waits again: %v", got)
		}
		time.Sleep(time.Second)
		want(t, w.do("POST", "/v1/mailbox/am_alice", message), 400, "INVALID_MESSAGE")

		// A forged copy of an unknown sender's message does not keep the real message out.
		unknown := testMessage("2", "am_elsewhere", "am_alice")
		forged := strings.Replace(unknown, `"signature":"`, `"signature":"AAAA`, 1)
		wantReceipt(t, w.do("POST", "/v1/mailbox/am_alice", forged), 202)
		wantReceipt(t, w.do("POST", "/v1/mailbox/am_alice", unknown), 202)
		if got := w.mail(alice, ""); len(got) != 2 || string(got[0].Message) != unknown && string(got[1].Message) != unknown {
			t.Errorf("kept: %v", got)
		}
	})
}

// TestManyCopiesAtOnce: of many copies of a message that arrive at once, one is stored.
func TestManyCopiesAtOnce(t *testing.T) {
	w := newRelayWorld(t)
	message := testMessage("1", "am_bob", "am_alice")
	ids := make([]string, 64)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() { ids[i] = wantReceipt(t, w.do("POST", "/v1/mailbox/am_alice", message), 202) })
	}
	all.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("receipts %v", ids)
		}
	}
	if got := w.countMail(); len(w.mail(alice, "")) != 1 || got.N != 1 {
		t.Errorf("%d are kept", got.N)
	}
}
