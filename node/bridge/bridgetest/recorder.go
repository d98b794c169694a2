package bridgetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsMarks is the namespace in which the recorder leaves a mark in the step that accepts a message.
const nsMarks = "bridgetest"

// call is one message that the bridge handed in.
type call struct {
	in   bridge.Inbound
	out  bridge.Outcome
	err  error
	mark string // key of its mark
}

// recorder stands between the bridge and the node in both directions.
type recorder struct {
	t *testing.T
	bridge.Mesh
	store      store.Store
	deliveries chan bridge.Delivery // the node's, after the bridge carried them out

	linked    chan struct{} // closed when transport is set
	transport bridge.Transport

	mu    sync.Mutex
	calls []call
}

func newRecorder(t *testing.T) *recorder {
	return &recorder{t: t, linked: make(chan struct{}), deliveries: make(chan bridge.Delivery, 100)}
}

func (r *recorder) link(to bridge.Transport) {
	r.transport = to
	close(r.linked)
}

// Accept implements [bridge.Receiver].
func (r *recorder) Accept(ctx context.Context, in bridge.Inbound) (bridge.Outcome, error) {
	if fault := findFault(in); fault != "" {
		r.t.Errorf("the bridge handed in a message %s: %+v", fault, in)
	}
	r.mu.Lock()
	mark := fmt.Sprint(len(r.calls))
	r.calls = append(r.calls, call{in: in, mark: mark})
	r.mu.Unlock()
	in.Records = append(in.Records, store.Change{Record: store.Record{NS: nsMarks, Key: mark}})
	out, err := r.Mesh.Accept(ctx, in)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.calls {
		if r.calls[i].mark == mark {
			r.calls[i].out, r.calls[i].err = out, err
		}
	}
	return out, err
}

// findFault returns why a bridge must not hand in a message, as text after "a message", or "" if the message is valid.
func findFault(in bridge.Inbound) string {
	address, err := bridge.ParseAddress(in.Address)
	mark, _ := in.Payload.Get("metadata")
	mark, _ = mark.Get("bridge")
	switch {
	case err != nil:
		return "without a proper address"
	case in.Peer != address.Pseudonym():
		return "whose peer is not the pseudonym of its address"
	case in.Principal == "":
		return "without a principal"
	case in.Native != nil:
		return "as a native one"
	case in.Verified == "":
		return "that does not say how its sender is known"
	case !in.MessageID.Valid(), !in.ConvID.Valid(), !in.Intent.Valid():
		return "with a bad id or intent"
	case in.Payload.Kind() != wire.Object || len(in.Payload.JSON()) > wire.MaxMessage:
		return "with a payload that is not an object or is too large"
	case mark.GetStr("kind") != address.Kind, mark.GetStr("link") != address.Link, mark.GetStr("peer") != address.Peer:
		return "without metadata.bridge"
	case len(in.Raw) == 0, in.Digest == [32]byte{}, in.Time.IsZero(), in.Received.IsZero():
		return "without bytes, digest or times"
	}
	return ""
}

// Deliver implements [bridge.Transport].
func (r *recorder) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	select {
	case <-r.linked:
	case <-ctx.Done():
		return bridge.Delivered{}, ctx.Err()
	}
	delivered, err := r.transport.Deliver(ctx, d)
	if err == nil {
		r.deliveries <- d
	}
	return delivered, err
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls)
}

// since returns the calls after the first n.
func (r *recorder) since(n int) []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]call(nil), r.calls[n:]...)
}

// only returns the single call after the first n. It checks that the bridge's records changed if and only if the call
// was accepted.
func (r *recorder) only(n int) call {
	r.t.Helper()
	calls := r.since(n)
	if len(calls) != 1 {
		r.t.Fatalf("the bridge handed in %d messages, want 1", len(calls))
	}
	c := calls[0]
	_, err := r.store.Records().Get(r.t.Context(), nsMarks, c.mark, time.Now())
	if stored, accepted := err == nil, c.err == nil && !c.out.Duplicate; stored != accepted {
		r.t.Errorf("message accepted: %v (%v), the bridge's record stored: %v (%v)", accepted, c.err, stored, err)
	}
	return c
}

// delivery returns the next message that the node delivered.
func (r *recorder) delivery() bridge.Delivery {
	r.t.Helper()
	select {
	case d := <-r.deliveries:
		return d
	case <-time.After(patience):
		r.t.Fatal("the node delivered nothing")
		return bridge.Delivery{}
	}
}
