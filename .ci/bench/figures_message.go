package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// measureMessages compares a signed message and its reply with the sum of their unavoidable pieces, measured in turn.
func (s *study) measureMessages(ctx context.Context) (err error) {
	srv, err := s.mesh.serve(ctx, filepath.Join(s.dir, "message"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()
	b, err := srv.bench(s.Concurrency)
	if err != nil {
		return err
	}
	s.p.say("message: prepare")
	messages, err := b.prepareMessage(ctx)
	if err != nil {
		return err
	}
	bare, stop, err := s.newControl(ctx, "message", messages)
	if err != nil {
		return err
	}
	defer stop()
	st, err := bolt.Open(ctx, filepath.Join(s.dir, "accept.db"), bolt.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	accept, err := newAcceptance(ctx, st)
	if err != nil {
		return err
	}
	pieces, err := newPieces()
	if err != nil {
		return err
	}
	contenders := append([]contender{{"message", b.workers, messages.operation(messages.base, b.workers, messages.check), srv.cpu}, bare, {"durable step", b.workers, accept, ownCPU}}, pieces...)
	samples := interleave(ctx, s.p, s.Rounds, s.Duration, contenders...)
	sums := make([]sample, s.Rounds)
	var note strings.Builder
	for i, c := range contenders[1:] {
		fmt.Fprintf(&note, ", %s %.1f", c.name, medianOf(samples[i+1], sample.cost))
		for r, piece := range samples[i+1] {
			sums[r].Ops = 1 // so that sample.cost returns CPU
			sums[r].CPU += time.Duration(piece.cost() * 1e3)
		}
	}
	o := summarize(samples[0], nil)
	read, verify := samples[len(contenders)-1], samples[3] // the last and the first of pieces
	s.add(
		newFigure(fmt.Sprintf("message: server CPU beside its pieces, %d senders", b.workers), ratio(samples[0], sums, sample.cost), "×",
			"%.0f µs beside %.0f µs%s; %.0f/s, p50 %.0f µs, p99 %.0f µs, %d errors %s", o.CPU, medianOf(sums, sample.cost), note.String(), o.Rate, o.P50, o.P99, o.Errors, o.Fault).withMax(1.25),
		newFigure("read + canonicalize beside verify", ratio(read, verify, sample.cost), "×", "").withMax(0.08),
	)
	memory, err := anonymous(srv.PID)
	if err == nil {
		s.add(newFigure("message: anonymous memory after the load", mib(memory), "MiB", "a directory and a node").withMax(61)) // 64 MB
	} else if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return ctx.Err()
}

// newPieces returns the unavoidable pieces of a signed exchange, each with one worker: the standard library's verify and
// sign, and the parsing of a message to its canonical form.
func newPieces() ([]contender, error) {
	key := newKey("pieces")
	from := sender{id: key.private.Public().AgentID(), key: key.private, talk: talkLength}
	raw, err := from.nextMessage("am_recipient", time.Now())
	if err != nil {
		return nil, err
	}
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	text, err := parseSigned(raw)
	if err != nil {
		return nil, err
	}
	sig := ed25519.Sign(private, text)
	return []contender{
		{"verify", 1, func(context.Context, int) error {
			if !ed25519.Verify(public, text, sig) {
				return errors.New("the signature is not valid")
			}
			return nil
		}, ownCPU},
		{"sign", 1, func(context.Context, int) error {
			ed25519.Sign(private, text)
			return nil
		}, ownCPU},
		{"read + canonicalize", 1, func(context.Context, int) error {
			_, err := parseSigned(raw)
			return err
		}, ownCPU},
	}, nil
}

// parseSigned parses a message and returns the bytes that its signature covers.
func parseSigned(raw []byte) ([]byte, error) {
	tree, err := wire.ParseObject(raw)
	if err != nil {
		return nil, err
	}
	if _, err := wire.ParseMessage(tree); err != nil {
		return nil, err
	}
	return signing.Canonical(tree.Without("signature"), signing.JCS), nil
}
