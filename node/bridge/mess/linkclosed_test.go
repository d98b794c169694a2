package mess

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
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
		k    shared
		t    *thread.Thread
		want string
	}{
		{"open", remoteView{status: thread.Received}, "us", shared{}, free, ""},
		{"no state", remoteView{}, "us", shared{}, free, ""},
		{"partly done", remoteView{status: thread.Partial, holder: "us"}, "us", shared{Holder: "us"}, working, ""},
		{"ours", remoteView{status: thread.Claimed, holder: "us"}, "us", shared{}, working, ""},
		{"another's", remoteView{status: thread.Claimed, holder: "dave\n"}, "us", shared{}, free, "dave has taken it there"},
		{"another's, and we do not know our name", remoteView{status: thread.Held, holder: "dave"}, "", shared{}, free, "dave has taken it there"},
		{"another's, and it waits for the owner", remoteView{status: thread.Claimed, holder: "dave"}, "us", shared{}, nil, "dave has taken it there"},
		{"ours under a name that we do not know", remoteView{status: thread.Claimed, holder: "us2"}, "", shared{}, working, ""},
		{"ours under another name than the configured one", remoteView{status: thread.Claimed, holder: "us2"}, "us", shared{}, working, ""},
		{"taken from us", remoteView{status: thread.Claimed, holder: "dave"}, "us", shared{Holder: "us"}, working, "dave has taken it there"},
		{"ended with a reason", remoteView{status: thread.Cancelled, holder: "us", messages: end("cancelled", "no")}, "us", shared{Holder: "us"}, working, "it is cancelled there: no"},
		{"ended without", remoteView{status: thread.Expired, messages: end("received", "x")}, "us", shared{}, free, "it is expired there"},
	} {
		if got := c.v.closedReason(c.self, c.k, c.t); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
