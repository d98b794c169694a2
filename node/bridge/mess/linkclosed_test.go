package mess

import (
	"net/http"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestClosedReason: cases in which a foreign thread no longer needs work here.
func TestClosedReason(t *testing.T) {
	end := func(code, reason string) []thread.Message {
		body := wire.Obj(wire.TextField("code", code), wire.TextField("reason", reason))
		return []thread.Message{{From: "carol"}, {From: "exchange", Mess: thread.Block{{Type: "status", Body: body}}.Tree()}}
	}
	free, working := &thread.Thread{Status: thread.Received}, &thread.Thread{Status: thread.Claimed, Holder: "bob"}
	for _, c := range []struct {
		name string
		v    remoteView
		self string
		k    knownThread
		t    *thread.Thread
		want string
	}{
		{"open", remoteView{status: thread.Received}, "us", knownThread{}, free, ""},
		{"no state", remoteView{}, "us", knownThread{}, free, ""},
		{"partly done", remoteView{status: thread.Partial, holder: "us"}, "us", knownThread{Holder: "us"}, working, ""},
		{"ours", remoteView{status: thread.Claimed, holder: "us"}, "us", knownThread{}, working, ""},
		{"another's", remoteView{status: thread.Claimed, holder: "dave\n"}, "us", knownThread{}, free, "dave has taken it there"},
		{"another's, and we do not know our name", remoteView{status: thread.Held, holder: "dave"}, "", knownThread{}, free, "dave has taken it there"},
		{"another's, and it waits for the owner", remoteView{status: thread.Claimed, holder: "dave"}, "us", knownThread{}, nil, "dave has taken it there"},
		{"ours under a name that we do not know", remoteView{status: thread.Claimed, holder: "us2"}, "", knownThread{}, working, ""},
		{"ours under another name than the configured one", remoteView{status: thread.Claimed, holder: "us2"}, "us", knownThread{}, working, ""},
		{"taken from us", remoteView{status: thread.Claimed, holder: "dave"}, "us", knownThread{Holder: "us"}, working, "dave has taken it there"},
		{"ended with a reason", remoteView{status: thread.Cancelled, holder: "us", messages: end("cancelled", "no")}, "us", knownThread{Holder: "us"}, working, "it is cancelled there: no"},
		{"ended without", remoteView{status: thread.Expired, messages: end("received", "x")}, "us", knownThread{}, free, "it is expired there"},
		{"gone", remoteView{gone: true}, "us", knownThread{}, free, "the exchange does not show it any more"},
	} {
		if got := c.v.closedReason(c.self, c.k, c.t); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestHiddenThreadsAreLookedAtSeldom: if a list is too short for all threads, the missing ones are checked one by one,
// a bounded number in each poll, and with growing pauses while they exist.
func TestHiddenThreadsAreLookedAtSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, remote, _ := newListRemote(t)
		x, threads := l.x, map[string]string{} // there → here
		for i := range 2*maxMissing + 5 {
			there := "there" + strconv.Itoa(i)
			address := bridge.Address{Kind: Kind, Link: "garden", Peer: "from-" + there}
			k := knownThread{Conv: l.convOf(there), Seen: 1, Updated: "1", Peer: address.Peer}
			res, err := x.Do(t.Context(), exchange.Actor{ID: string(address.Pseudonym())}, mustParse(t, "- request: {intent: look}"),
				exchange.Options{Peer: &thread.Peer{Conv: k.Conv, Address: address.String()}, Records: l.change(there, k)})
			if err != nil {
				t.Fatal(err)
			}
			threads[there] = res.Created[0]
		}
		poll := func() int {
			t.Helper()
			remote.reads = nil
			if err := l.poll(t.Context()); err != nil {
				t.Fatal(err)
			}
			return len(remote.reads)
		}
		for _, want := range []int{maxMissing, maxMissing, 5, 0} {
			if n := poll(); n != want {
				t.Errorf("%d were looked at, want %d", n, want)
			}
		}
		looks := 0
		for range int(time.Hour / folder.PollEvery) {
			time.Sleep(folder.PollEvery)
			n := poll()
			if looks += n; n > maxMissing {
				t.Fatalf("%d were looked at in one poll", n)
			}
		}
		if each := looks / len(threads); each < 6 || each > 14 {
			t.Errorf("each was looked at %d times in an hour", each)
		}
		// A thread that no longer exists ends here, and is not checked again.
		for there := range threads {
			remote.fails[there] = &client.SendError{Status: http.StatusNotFound}
		}
		for range int(2 * lastPause / folder.PollEvery) {
			time.Sleep(folder.PollEvery)
			poll()
		}
		for there, here := range threads {
			if th, err := x.Thread(t.Context(), exchange.Owner("test"), here); err != nil || th.Status != thread.Cancelled {
				t.Errorf("%s is %s, %v", there, th.Status, err)
			}
		}
		time.Sleep(time.Hour)
		_, open := x.OpenVia("garden", 1, func(string) bool { return true })
		if n := poll(); n != 0 || open != 0 {
			t.Errorf("%d were looked at when all have ended", n)
		}
		// A listed thread is checked only when it has changed.
		remote.listed = []remoteThread{{"there0", "from-there0", "1"}}
		if poll(); len(remote.reads) > 1 || slices.Contains(remote.reads, "there1") {
			t.Errorf("read: %v", remote.reads)
		}
	})
}
