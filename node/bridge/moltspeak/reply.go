package moltspeak

import (
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

var noAnswer = []byte("{}\n")

// reply signs and wraps an answer the way the request travelled (MS-17), and keeps it for a repeat.
func (b *Bridge) reply(c *exchange, a answer) Reply {
	r := Reply{Status: a.status}
	if c.signed {
		r.Sender, r.Known, r.Fresh = c.m.From, c.known(), c.fresh
	}
	if a.stored != nil {
		r.Body = b.pack(c, a.stored.Reply)
		return r
	}
	if a.op == "" {
		r.Status, r.Body = http.StatusAccepted, noAnswer
		return r
	}
	to, class := c.m.From, Internal
	if to.Agent == "" || !validName(to.Agent) || !validName(to.Org) {
		to = Agent{Agent: "unknown", Org: "unknown"}
	}
	if !c.peer.takes(class) {
		class = Public // what the bridge itself says is fit for anyone
	}
	var meta *PIIMeta
	if a.user {
		out, e := b.gate(c.ctx, to, a.p, "re "+seenKey(c.m.From, c.m.ID), c.now)
		if e == nil && len(out.uses) > 0 {
			if err := b.records.Apply(c.ctx, out.uses, c.now); err != nil {
				e = fault(CodeConsent).because(err)
			}
		}
		if e != nil {
			out.class = class
			// The owner sees why in the log and in the conversation; the peer learns that nothing comes.
			b.cfg.Logger.WarnContext(c.ctx, "moltspeak: an answer was blocked", "peer", to.Name(), "types", e.Types)
			a.op, a.p, r.Status = OpError, fault(e.Code).Payload(true), e.Status
		}
		class, meta = out.class.like(c.m.Class), out.meta
	}
	re := c.m.ID
	if re == "" {
		re = readableID(c.packet.Tree)
	}
	d := Draft{ID: c.replyID(), Re: re, Op: a.op, Time: c.now, From: b.self, To: Agent{Agent: to.Agent, Org: to.Org}, P: a.p, Class: class, PII: meta, Ext: a.ext}
	if re != "" && b.coreOnly(to, c.peer) { // a respond names what it answers
		d = d.inCore()
	}
	tree, err := sign(d.Tree(), b.cfg.Key)
	if err != nil {
		b.cfg.Logger.ErrorContext(c.ctx, "moltspeak: sign an answer", "err", err)
		return Reply{Status: http.StatusInternalServerError, Body: noAnswer}
	}
	raw := tree.JSON()
	if c.signed && a.op != OpError && c.m.ID != "" && c.m.Class != Secret && class != PII {
		b.keepReply(c, seen{Digest: hex.EncodeToString(c.digest[:]), Reply: raw, Status: r.Status})
	}
	r.Body = b.pack(c, raw)
	return r
}

// inCore says an answer with the core operations alone, for peers that know no other (MS-25): what only the documents know
// becomes the data of a respond.
func (d Draft) inCore() Draft {
	switch d.Op {
	case OpHelloAck, OpVerifyResponse, OpPong, OpEstablished:
		d.Op, d.P = OpRespond, Respond{Status: "success", Data: d.P}.value()
	case OpConsentResponse, OpTaskAck: // their p is that of a respond
		d.Op = OpRespond
	}
	return d
}

// readableID is the id of a message that could not be read otherwise (MS-52).
func readableID(tree wire.Value) string {
	if id := tree.GetStr("id"); validID(id) {
		return id
	}
	return ""
}

// keepReply stores the answer beside the record of its message. Losing it costs a repeat its answer, nothing else.
func (b *Bridge) keepReply(c *exchange, s seen) {
	var old seen
	rev, ok, err := b.read(c.ctx, nsSeen, seenKey(c.m.From, c.m.ID), &old, c.now)
	if err != nil || !ok {
		return
	}
	s.Conv = old.Conv
	err = b.records.Apply(c.ctx, []store.Change{b.seenChange(c.m, s, c.known(), rev, c.now)}, c.now)
	if err != nil && !errors.Is(err, store.ErrConflict) {
		b.cfg.Logger.WarnContext(c.ctx, "moltspeak: keep an answer", "err", err)
	}
}

// pack boxes the answer to a boxed request, for the sender's pinned key, else for the key of the box, which the inner
// signature vouched for. An answer to somebody who is not verified is plain (MS-20).
func (b *Bridge) pack(c *exchange, raw []byte) []byte {
	tree, err := wire.ParseForeign(raw, MaxNesting+1, maxValues)
	if err != nil {
		return noAnswer // ours: it reads back
	}
	if c.signed {
		if point, ok := parsePoint(c.peer.EncKey); ok && (c.packet.Boxed || longClasses[tree.GetStr("cls")].boxed()) {
			return seal(tree, b.cfg.Box, point)
		}
		if c.packet.Boxed {
			return seal(tree, b.cfg.Box, c.packet.Sealed)
		}
	}
	return wrap(tree, c.packet.Enveloped)
}

// gated is what the gate lets out.
type gated struct {
	class Class
	meta  *PIIMeta
	uses  []store.Change // of the consent, in the step before it leaves
}

// gate scans a message that leaves (MS-40), known by a name that is the same when it is sent again: its class, and the
// consent that covers what was found. The error is E_CONSENT.
func (b *Bridge) gate(ctx context.Context, to Agent, p wire.Value, message string, now time.Time) (gated, *Error) {
	found := personal.Types(p)
	peer, known, err := b.peer(ctx, to.Name(), now)
	if len(found) == 0 {
		if err == nil && !peer.takes(Internal) {
			return gated{}, faultAt(CodeClassification, "cls", "the peer does not take what is internal")
		}
		return gated{class: Internal}, nil
	}
	refuse := faultAt(CodeConsent, "p", "holds personal data that no consent covers")
	refuse.Types = found
	if err != nil || !known || peer.EncKey == "" || !peer.takes(PII) {
		return gated{}, refuse.because(err) // it could not be sent encrypted, or the peer does not take it (MS-38)
	}
	grant, uses, err := b.covering(ctx, to.Name(), found, message, now)
	if err != nil || grant == nil {
		return gated{}, refuse.because(err)
	}
	return gated{PII, &PIIMeta{
		Types: found, GrantedBy: grant.Subject, Purpose: grant.Purpose, Proof: "consent-token:" + grant.ID,
		Expires: time.Unix(grant.Expires, 0).UTC(),
	}, uses}, nil
}
