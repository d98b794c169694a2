package mess

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// doAsPeer sends a block as a mesh agent whose messages are let in.
func (l *lab) doAsPeer(block string) (exchange.Result, error) {
	l.t.Helper()
	b := mustParse(l.t, block)
	return l.Do(l.t.Context(), exchange.Actor{ID: "am_peer", Channel: "agentmesh"}, b, exchange.Options{Peer: &thread.Peer{Conv: "conv_1"}, Hold: b.NeedsApproval()})
}

// requestAsPeer makes a request of the peer.
func (l *lab) requestAsPeer(body string) string {
	l.t.Helper()
	r, err := l.doAsPeer("- request: " + body + "\n")
	if err != nil {
		l.t.Fatal(err)
	}
	return r.Created[0]
}

// TestSuggestedWordsWaitForTheOwner: the owner approves whatever a mesh agent pays for or wants to confirm, even if it
// comes from an accepted suggestion: an executor and an agent that work together cannot get around the owner.
func TestSuggestedWordsWaitForTheOwner(t *testing.T) {
	for name, c := range map[string]struct {
		requests []string
		suggest  string // bob's suggestion about them
		held     []bool // of the new threads
	}{
		"parts that are paid": {
			[]string{"{intent: look around}"},
			"type: split, re: [%s], proposed: [look around, {intent: sell the house, compensation: {shells: 1000}}]", []bool{false, true},
		},
		"parts to confirm":               {[]string{"{intent: look around}"}, "type: split, re: [%s], proposed: [{intent: a, confirm_before: true}, b]", []bool{true, false}},
		"parts of one that is confirmed": {[]string{"{intent: look, confirm_before: true}"}, "type: split, re: [%s], proposed: [sell the house, b]", []bool{true, true}},
		"one for several": {
			[]string{"{intent: look, confirm_before: true}", "{intent: sweep}"},
			"type: merge, re: [%s], proposed: {combined_intent: sell the house}", []bool{true},
		},
		"the same by another": {[]string{"{intent: look, confirm_before: true, compensation: {shells: 5}}"}, "type: delegate, re: [%s], proposed: carol", []bool{false}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.executor("bob")
			l.executor("carol")
			var refs []string
			for _, body := range c.requests {
				ref := l.requestAsPeer(body)
				if l.thread(ref).Parked == thread.ParkedApproval {
					l.status(thread.OwnerID, ref, "received")
				}
				refs = append(refs, ref)
			}
			l.do("bob", "- suggestion: {id: s, reason: better so, "+fmt.Sprintf(c.suggest, strings.Join(refs, ", "))+"}\n")
			r, err := l.doAsPeer("- reply: {re: s, accept: true}\n")
			if err != nil || len(r.Created) != len(c.held) {
				t.Fatalf("made %v, %v", r.Created, err)
			}
			for i, ref := range r.Created {
				if !c.held[i] {
					l.want(ref, thread.Received)
					continue
				}
				if th := l.want(ref, thread.Held); th.Turn() != thread.TurnRelease {
					t.Errorf("%s: the owner's turn is %q", ref, th.Turn())
				}
				l.refuse(http.StatusNotFound, "bob", "- status: {re: "+ref+", code: claimed}")
				l.status(thread.OwnerID, ref, "received")
				l.status("bob", ref, "claimed")
			}
		})
	}
}

// TestHeldBackIsNotReplaced: a thread that the owner holds back is not replaced, whatever its requester says to older
// suggestions.
func TestHeldBackIsNotReplaced(t *testing.T) {
	for kind, proposed := range map[string]string{"split": "[a, b]", "merge": "{}", "delegate": "carol", "defer": "1h"} {
		l := newLab(t)
		l.executor("bob")
		l.executor("carol")
		ref := l.requestAsPeer("{intent: look}")
		head, re := ref, ref
		if kind == "merge" {
			head = l.requestAsPeer("{intent: sweep}")
			re = head + ", " + ref
		}
		l.do("bob", "- suggestion: {id: s, type: "+kind+", re: ["+re+"], proposed: "+proposed+", reason: better so}\n")
		l.status(thread.OwnerID, ref, "held, reason: not before I have looked")
		if r, err := l.doAsPeer("- reply: {re: s, accept: true}\n"); statusOf(err) != http.StatusConflict {
			t.Errorf("%s: made %v, %v", kind, r.Created, err)
		}
		if th := l.want(ref, thread.Held); th.Parked != thread.ParkedApproval || !th.NotBefore.IsZero() {
			t.Errorf("%s: it is parked for %q, until %v", kind, th.Parked, th.NotBefore)
		}
		l.do(thread.OwnerID, "- reply: {re: "+head+", accept: true}\n") // the approval for which it waits
		if th := l.thread(ref); th.Status == thread.Held {
			t.Errorf("%s: the owner's own yes changed nothing", kind)
		}
	}
}

// TestOwnerIsAskedAboutParts: the owner is asked about each part that needs approval.
func TestOwnerIsAskedAboutParts(t *testing.T) {
	home, away := pair(t, acl.Open)
	said := 0
	say := func(action, entry string) {
		t.Helper()
		said++
		payload := wire.Obj(wire.TextField("action", action), wire.Field("mess", mustParse(t, entry).Tree()))
		_, err := away.bridge.Receive(t.Context(), bridge.Call{
			From: home.node.ID(), Conv: "conv_parts", ID: wire.MessageID(fmt.Sprint("msg_", said)), Payload: payload,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	say("request", "- request: {intent: look into the fridge}\n")
	there := away.waitMeshThread()
	away.do("bob", "- suggestion: {id: s, type: split, re: "+there+", proposed: [{intent: sell the house, compensation: {shells: 9}}, b], reason: r}\n")
	say("reply", "- reply: {re: s, accept: true}\n")
	away.want(there, thread.Superseded)
	if ask := away.waitQuestion("sell the house"); ask.Kind != askHeld {
		t.Errorf("the question is of kind %s", ask.Kind)
	}
}
