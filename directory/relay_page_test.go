package directory

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/directory/mailbox"
)

// TestMailAfter: a reader that leaves mail in its mailbox can read on after a message, and wait for later ones (AM-65).
func TestMailAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newRelayWorld(t)
		for _, n := range []string{"1", "2", "3"} {
			wantReceipt(t, w.do("POST", "/v1/relay", testMessage(n, "am_bob", "am_alice"), withBearer(bob)...), 201)
			time.Sleep(time.Second)
		}
		all := w.mail(alice, "")
		if len(all) != 3 {
			t.Fatalf("%d messages, want 3", len(all))
		}
		for i, item := range all {
			rest := w.mail(alice, "after="+item.RelayID)
			if len(rest) != 2-i || len(rest) > 0 && rest[0].RelayID != all[i+1].RelayID {
				t.Errorf("behind message %d: %v", i+1, rest)
			}
		}
		last := all[2].RelayID
		got := make(chan []mailbox.Item)
		go func() {
			items, err := w.pollMail(t.Context(), alice, mailbox.Query{After: last, Wait: maxWait})
			if err != nil {
				t.Error(err)
			}
			got <- items
		}()
		time.Sleep(7 * time.Second)
		wantReceipt(t, w.do("POST", "/v1/relay", testMessage("4", "am_bob", "am_alice"), withBearer(bob)...), 201)
		if items := <-got; len(items) != 1 {
			t.Errorf("the poll behind the last message gets %v", items)
		}
		for name, after := range map[string]string{"altered": last[:len(last)-1] + "0", "no id": "x", "another's": "relay_" + last[6:40] + "aaaaaaaaaa"} {
			if a := w.do("GET", "/v1/relay?after="+after, "", withBearer(alice)...); a.Code != 400 {
				t.Errorf("after %s: %d %s, want 400", name, a.Code, a.Body)
			}
		}
	})
}
