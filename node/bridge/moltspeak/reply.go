package moltspeak

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// noAnswer is the body of a response without an answer (MS-45).
var noAnswer = []byte("{}\n")

// success returns a respond with the status success.
func success(data wire.Value) answer {
	return answer{op: message.OpRespond, p: message.Respond{Status: "success", Data: data}.Value()}
}

// reply builds the response to a request: it signs the answer, stores it for a repeat of the request unless it is an
// error, personal or secret, and wraps it in the same way as the request (MS-17).
func (b *Bridge) reply(c *request, a answer) Response {
	r := Response{Status: cmp.Or(a.status, http.StatusOK)}
	if c.signed {
		r.Sender, r.Known, r.Fresh = c.m.From, c.isKnown(), c.fresh
	}
	if len(a.stored.Reply) > 0 {
		if c.lacksKey(b.links) {
			return b.refuse(c, errKeyless())
		}
		r.Status, r.Body = a.stored.Status, b.pack(c, a.stored.Reply)
		return r
	}
	if a.op == "" {
		r.Status, r.Body = http.StatusAccepted, noAnswer
		return r
	}
	to, class := c.m.From, message.Internal
	if to.Agent == "" || !message.ValidName(to.Agent) || !message.ValidName(to.Org) {
		to = message.Agent{Agent: "unknown", Org: "unknown"}
	}
	if !c.peer.accepts(class) {
		class = message.Public // the bridge's own text may go to anybody
	}
	var meta *message.PIIMeta
	if a.fromOwner {
		out, e := b.screen(c.ctx, to, a.p, c.answerName(), c.now)
		if e == nil && len(out.uses) > 0 {
			if err := b.records.Apply(c.ctx, out.uses, c.now); err != nil {
				e = message.Fail(message.CodeInternal).Because(err)
			}
		}
		if e != nil {
			out = screening{class: class}
			// The log has the types of the data.
			b.cfg.Logger.WarnContext(c.ctx, "moltspeak: an answer was blocked", "peer", to.Name(), "types", e.Types, "cause", e.Unwrap())
			if c.fresh && e.Code != message.CodeInternal && b.cfg.OnBlocked != nil { // a repeat was reported already
				b.cfg.OnBlocked(c.ctx, c.address, blockedError(e, to))
			}
			const brief = true // the peer learns only the error code
			a.op, a.p, r.Status = message.OpError, message.Fail(e.Code).Payload(brief), e.Status
		}
		class, meta = out.class.ForAnswer(c.m.Class), out.meta
	}
	re := c.m.ID
	if re == "" { // none, or the message could not be parsed
		re = message.ReadableID(c.packet.Tree)
	}
	d := message.Draft{ID: newID(), Re: re, Op: a.op, Time: c.now, To: to, P: a.p, Class: class, PII: meta, Ext: a.ext}
	if re != "" && b.links.usesCoreOnly(to, c.peer) { // a respond must name the message that it answers
		d = d.ToCore()
	}
	raw := b.signTree(d).JSON()
	if c.signed && a.op != message.OpError && c.m.ID != "" && c.m.Class != message.Secret && class != message.PII {
		b.replays.keep(c, replayRecord{Digest: hex.EncodeToString(c.digest[:]), Reply: raw, Status: r.Status})
	}
	if a.op != message.OpError && c.lacksKey(b.links) {
		return b.refuse(c, errKeyless())
	}
	r.Body = b.pack(c, raw)
	return r
}

// lacksKey reports whether the answer must be encrypted, because the sender's link encrypts always, but cannot be,
// because we know no key. The answer to a ping or to a message of a handshake need not be encrypted: it is in a
// handshake that a peer shows its key.
func (c *request) lacksKey(l *links) bool {
	switch c.m.Op {
	case message.OpHello, message.OpVerify, message.OpVerifyResponse, message.OpRespond, message.OpPing:
		return false
	}
	return c.peer.EncKey == "" && !c.packet.Boxed && l.encryptsAlways(c.address.Link)
}

// errKeyless is the error for a peer behind a link that encrypts always, if the peer has shown no key.
func errKeyless() *message.Error {
	return message.FailAt(message.CodeClassification, "cls", "the link encrypts always, and the peer has shown no encryption key")
}

// signTree returns a draft as a message of ours. The message does not repeat the recipient's keys.
func (b *Bridge) signTree(d message.Draft) wire.Value {
	d.From, d.To = b.self, message.Agent{Agent: d.To.Agent, Org: d.To.Org}
	return message.Sign(d.Tree(), b.cfg.Key)
}

// pack returns the bytes of a signed answer. It encrypts the answer if the request, the class of the answer or the link
// requires it: for the sender's pinned key, or else for the key of the request's box, which the inner signature
// confirmed. The answer to an unverified sender is not encrypted (MS-20).
func (b *Bridge) pack(c *request, raw []byte) []byte {
	tree, err := wire.ParseForeign(raw, message.MaxNesting, message.MaxValues)
	if err != nil {
		return noAnswer // our own JSON always parses
	}
	if c.signed {
		encrypts := c.packet.Boxed || message.ParseClass(tree.GetStr("cls")).IsBoxed() || b.links.encryptsAlways(c.address.Link)
		if point, ok := message.ParsePoint(c.peer.EncKey); ok && encrypts {
			return message.Seal(tree, b.cfg.Box, point)
		}
		if c.packet.Boxed {
			return message.Seal(tree, b.cfg.Box, c.packet.SenderKey)
		}
	}
	return message.Wrap(tree, c.packet.Enveloped)
}

// answerName identifies the answer to the request for [Bridge.screen].
func (c *request) answerName() string { return "re " + replayKey(c.m.From, c.m.ID) }

// screening is the class of an outgoing message and the consent that it uses.
type screening struct {
	class message.Class
	meta  *message.PIIMeta
	uses  []store.Change // changes that use up the consent, to be applied before the message is sent
}

func blockedError(e *message.Error, to message.Agent) error {
	if len(e.Types) == 0 {
		return fmt.Errorf("blocked: %w", e)
	}
	return fmt.Errorf("blocked: %w; the message contains %s, which no consent for %s covers", e, strings.Join(e.Types, ", "), to.Name())
}

// proof returns the proof of the consent, or "" if the message needs none.
func (s screening) proof() string {
	if s.meta == nil {
		return ""
	}
	return s.meta.Proof
}

// screen scans an outgoing message for personal data (MS-40), and returns the class of the message and the consent
// that covers the data. name identifies the message; it stays the same when the message is sent again. If no consent
// covers the data, or the peer cannot get the data encrypted, the error is E_CONSENT. If the store fails, it is
// E_INTERNAL. It is E_CLASSIFICATION if the link demands encryption and the peer has shown no key, or if the message
// has no personal data and the peer does not accept internal messages.
func (b *Bridge) screen(ctx context.Context, to message.Agent, p wire.Value, name string, now time.Time) (screening, *message.Error) {
	found := personal.Types(p)
	peer, _, err := b.pins.get(ctx, to.Name(), now)
	if err == nil && peer.EncKey == "" && b.links.encryptsAlways(b.pins.address(to).Link) {
		return screening{}, errKeyless()
	}
	if len(found) == 0 {
		if err == nil && !peer.accepts(message.Internal) {
			return screening{}, message.FailAt(message.CodeClassification, "cls", "the peer does not accept internal messages")
		}
		return screening{class: message.Internal}, nil
	}
	var grant *Grant
	var uses []store.Change
	// Personal data leaves only encrypted, and only to a peer that accepts the class (MS-38).
	if peer.EncKey != "" && peer.accepts(message.PII) {
		grant, uses, err = b.grants.findCovering(ctx, to.Name(), found, name, now)
	}
	switch {
	case err != nil:
		return screening{}, message.Fail(message.CodeInternal).Because(err)
	case grant == nil:
		refusal := message.FailAt(message.CodeConsent, "p", "contains personal data that no consent covers")
		refusal.Types = found
		return screening{}, refusal
	}
	return screening{message.PII, &message.PIIMeta{
		Types: found, GrantedBy: grant.Subject, Purpose: grant.Purpose, Proof: proofPrefix + grant.ID,
		Expires: time.Unix(grant.Expires, 0).UTC(),
	}, uses}, nil
}
