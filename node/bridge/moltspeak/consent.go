package moltspeak

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

const askConsent = "moltspeak-consent"

// aboutConsent returns the field About of the [acl.Ask] by which peer requests consent from the owner.
func aboutConsent(peer string) string { return askConsent + "/" + peer }

// proofPrefix begins a proof that names a consent of ours. The id of the consent follows.
const proofPrefix = "consent-token:"

// Grant is the owner's consent: what data a peer may get, why, and until when (MS-42). Times are in Unix seconds.
type Grant struct {
	ID      string   `json:"jti"`
	Issuer  string   `json:"iss"`
	Subject string   `json:"sub"` // the person whose data it is
	Peer    string   `json:"aud"`
	Issued  int64    `json:"iat"`
	Expires int64    `json:"exp"`
	Scope   []string `json:"scope"`
	Purpose string   `json:"purpose"`
	Revoked int64    `json:"revoked,omitempty"`

	Constraints message.Constraints `json:"constraints,omitzero"`
	Used        string              `json:"used,omitempty"` // the message that used up a one-time grant

	rev store.Rev
}

func decodeGrant(rec store.Record) (Grant, error) {
	g, err := store.Decode[Grant](rec)
	g.rev = rec.Rev
	return g, err
}

func (g Grant) isLive(now time.Time) bool {
	return g.Revoked == 0 && now.Unix() < g.Expires && g.Used == ""
}

// covers reports whether the grant is valid now for these types of personal data. A one-time grant stays valid for the
// message that used it up.
func (g Grant) covers(types []string, messageName string, now time.Time) bool {
	if g.Used == messageName {
		g.Used = "" // the same message is sent again
	}
	return g.isLive(now) && !slices.ContainsFunc(types, func(t string) bool { return !slices.Contains(g.Scope, t) })
}

func (g Grant) change(rev store.Rev) store.Change {
	return store.Change{IfRev: rev, Max: maxGrants, Record: store.Record{
		NS: nsConsents, Key: g.ID, Body: wire.MustMarshal(g), Terms: []string{"peer:" + wire.HashOf(g.Peer)}, Expires: time.Unix(g.Expires, 0).Add(keepEnded),
	}}
}

// keepEnded is how long the owner still sees a grant that has expired.
const keepEnded = 30 * 24 * time.Hour

// durations are the lifetimes of consents. A "permanent" one ends after a year; the peer can ask again.
var durations = map[string]time.Duration{"session": sessionLife, "24h": 24 * time.Hour, "7d": 7 * 24 * time.Hour, "permanent": 365 * 24 * time.Hour}

// consentAsk is the body of the question to the owner. Purpose and Human are text of the peer: untrusted.
type consentAsk struct {
	Peer     string   `json:"peer"`
	Types    []string `json:"data_types"`
	Purpose  string   `json:"purpose"`
	Duration string   `json:"duration"`
	Human    string   `json:"human,omitempty"`
	Re       string   `json:"message_id"`

	Constraints  message.Constraints `json:"constraints,omitzero"`
	Boxed        bool                `json:"boxed,omitempty"`        // the request came encrypted, so the answer must be encrypted
	Confidential bool                `json:"confidential,omitempty"` // the request was confidential, so the answer is
}

func (b *Bridge) handleConsent(c *request, p message.Consent) (answer, *message.Error) {
	respond := func(status string, data wire.Value) answer {
		return answer{op: message.OpConsentResponse, p: message.Respond{Status: status, Data: data}.Value()}
	}
	switch p.Action {
	case "request":
		return b.askForConsent(c, p)
	case "grant": // only a claim of the peer about its own data; it has no effect
		return respond("success", wire.Obj(wire.TextField("action", "noted"))), nil
	}
	// The actions verify and revoke name a consent by its token.
	g, ok := b.grants.checkToken(c.ctx, p.Token, c.m.From.Name(), c.now)
	if p.Action == "verify" {
		return respond("success", wire.Obj(wire.Field("valid", wire.Bool(ok)))), nil
	}
	if !ok {
		return answer{}, message.FailAt(message.CodeConsent, "p.consent_token", "is not a consent of yours")
	}
	if err := b.grants.revoke(c.ctx, g.ID, c.now); err != nil {
		return answer{}, message.Fail(message.CodeInternal).Because(err)
	}
	return respond("success", wire.Obj(wire.Field("revoked", wire.Bool(true)))), nil
}

// askForConsent asks the owner for a consent. Each peer may have only one question waiting; another one is refused until
// the owner decides.
func (b *Bridge) askForConsent(c *request, p message.Consent) (answer, *message.Error) {
	if c.standing == acl.Rejected {
		return answer{}, message.Fail(message.CodeCapability)
	}
	for _, t := range p.Types {
		if !message.ValidID(t) {
			return answer{}, message.FailAt(message.CodeInvalidParam, "p.data_types", "must have 1 to 128 printable bytes")
		}
	}
	question := consentAsk{
		Peer: c.m.From.Name(), Types: p.Types, Purpose: wire.OneLine(p.Purpose, message.MaxText), Duration: p.Duration,
		Human: wire.OneLine(p.Human, message.MaxText), Re: c.m.ID, Constraints: p.Constraints,
		Boxed: c.packet.Boxed, Confidential: c.m.Class == message.Confidential,
	}
	ask, err := question.open(b, c)
	switch {
	case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrQuota):
		e := message.Fail(message.CodeRateLimit).Because(err)
		e.Delay = consentDelay
		return answer{}, e
	case err != nil:
		return answer{}, message.Fail(message.CodeInternal).Because(err)
	}
	data := wire.Obj(wire.TextField("action", wire.ActionPending), wire.TextField("estimated_response", ask.Expires.Format(time.RFC3339)),
		wire.TextField("reason", "The owner of this agent decides on consent."))
	return answer{op: message.OpConsentResponse, p: message.Respond{Status: "partial", Data: data}.Value(), status: http.StatusAccepted}, nil
}

// consentDelay is the time after which a peer may ask again if its question was refused.
const consentDelay = time.Minute

// open stores the question. It fails with store.ErrConflict if another question of the peer waits or the peer's pin
// has changed, and with store.ErrQuota if too many questions wait.
func (question consentAsk) open(b *Bridge, c *request) (acl.Ask, error) {
	// slot bounds the questions that wait: one for each peer, and maxConsentAsks together.
	slot := acl.Slot{Key: "moltspeak-consent/" + wire.HashOf(c.address.String()), Term: "moltspeak-consent", Max: maxConsentAsks}
	var room []store.Change // drops the question of another stranger if strangers have too many
	if !c.isKnown() {
		slot.Term, slot.Max, slot.Sources = "moltspeak-consent-stranger", strangersConsentAsks, c.sources
		var err error
		if room, err = b.cfg.Mesh.Asks().MakeRoom(c.ctx, slot, c.now); err != nil {
			return acl.Ask{}, err
		}
	}
	body := wire.MustMarshal(question)
	ask, changes := b.cfg.Mesh.Asks().Open(acl.Ask{
		Kind: askConsent, Subject: c.address.String(), About: aboutConsent(question.Peer), Title: "A MoltSpeak agent asks for consent to personal data", Rule: "moltspeak.consent",
		Body: body, Hash: acl.HashBody(body), Choices: []acl.Choice{acl.Approve, acl.Reject}, Created: c.now.UTC(),
		Purge: c.purge(), Lasting: true,
	}, slot)
	// The peer's pin is written, too, so that a concurrent unpin fails.
	changes = slices.Concat(room, changes, []store.Change{c.peer.change()})
	if err := b.records.Apply(c.ctx, changes, c.now); err != nil {
		return acl.Ask{}, err
	}
	return ask, nil
}

// consentRejected returns the answer to a request for consent that the owner rejected.
func consentRejected() message.Respond {
	return message.Respond{Status: "error", Data: wire.Obj(wire.TextField("action", "rejected"))}
}

// consentResolver carries out the owner's decision about a request for consent.
type consentResolver struct{ b *Bridge }

// Resolve implements [acl.Resolver].
func (r consentResolver) Resolve(ctx context.Context, ask acl.Ask, d acl.Decision) error {
	var body consentAsk
	if err := json.Unmarshal(ask.Body, &body); err != nil {
		return err
	}
	changes, answer := d.Changes, consentRejected()
	if d.Choice == acl.Approve {
		if err := ask.CheckBody(); err != nil {
			return err
		}
		g := Grant{
			ID: newID(), Issuer: r.b.self.Name(), Subject: cmp.Or(body.Human, "owner@"+r.b.self.Org), Peer: body.Peer, Issued: d.Now.Unix(),
			Expires: d.Now.Add(durations[body.Duration]).Unix(), Scope: body.Types, Purpose: body.Purpose,
			Constraints: body.Constraints,
		}
		changes = append(changes, g.change(store.Absent))
		if p, known, err := r.b.pins.get(ctx, body.Peer, d.Now); err != nil {
			return err
		} else if known { // keep the pin, so that nobody else can take the name and get the consent
			p.Chosen = true // stored even if it is set already, so that a concurrent unpin fails
			changes = append(changes, p.change())
		}
		answer = message.Respond{Status: "success", Data: wire.Obj(wire.TextField("action", "granted"), wire.TextField("consent_token", r.b.grants.token(g)),
			wire.TextField("proof", proofPrefix+g.ID), wire.Field("expires", wire.Int(g.Expires)), wire.Field("scope", wire.Texts(g.Scope)))}
	}
	cb := callback{
		DueRow: bridge.DueRow{Party: body.Peer, Due: d.Now}, Re: body.Re, P: answer.Value(), Class: message.Internal, Boxed: body.Boxed,
		Until: conversations.Sooner(d.Now.Add(keepCallbacks), ask.Purge),
	}
	if body.Confidential {
		cb.Class = message.Confidential
	}
	return r.b.records.Apply(ctx, append(changes, cb.change(store.Any)), d.Now)
}

// maxGrants bounds the stored grants of one peer.
const maxGrants = 10_000

// grants stores the consents of the owner, and makes and checks their tokens.
type grants struct {
	records store.Records
	key     *signing.PrivateKey
}

// token returns the grant as JSON in base64url. Its member sig is our signature over the canonical form of the other
// members (MS-42).
func (g grants) token(grant Grant) string {
	tree, err := wire.ValueOf(grant)
	if err != nil {
		panic(err) // cannot happen: a struct of texts and numbers
	}
	return base64.RawURLEncoding.EncodeToString(message.Sign(tree, g.key).JSON())
}

// checkToken returns the grant of a token, or false if we did not issue it to this peer or it is no longer valid.
func (g grants) checkToken(ctx context.Context, token, peer string, now time.Time) (Grant, bool) {
	data, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil {
		return Grant{}, false
	}
	tree, err := wire.Parse(data)
	if err != nil || tree.Kind() != wire.Object {
		return Grant{}, false
	}
	sig, _ := strings.CutPrefix(tree.GetStr("sig"), message.Ed25519Prefix)
	if g.key.Public().VerifyStrict(signing.Canonical(tree.Without("sig"), signing.Python), sig) != nil {
		return Grant{}, false
	}
	return g.find(ctx, tree.GetStr("jti"), peer, now)
}

// find returns a grant of a peer that is valid now.
func (g grants) find(ctx context.Context, id, peer string, now time.Time) (grant Grant, ok bool) {
	_, known, err := store.ReadRecord(ctx, g.records, nsConsents, id, &grant, now)
	return grant, err == nil && known && grant.Peer == peer && grant.isLive(now)
}

// revoke ends a grant at once. Revoking it again does nothing.
func (g grants) revoke(ctx context.Context, id string, now time.Time) error {
	for {
		var grant Grant
		rev, ok, err := store.ReadRecord(ctx, g.records, nsConsents, id, &grant, now)
		if err != nil {
			return err
		}
		if !ok {
			return store.ErrNotFound
		}
		if grant.Revoked != 0 {
			return nil
		}
		grant.Revoked = now.Unix()
		err = g.records.Apply(ctx, []store.Change{grant.change(rev)}, now)
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

// revocations returns the changes that revoke all live grants of a peer.
func (g grants) revocations(ctx context.Context, peer string, now time.Time) (changes []store.Change, err error) {
	list, err := g.list(ctx, peer, now)
	for _, grant := range list {
		if grant.isLive(now) {
			grant.Revoked = now.Unix()
			changes = append(changes, grant.change(grant.rev))
		}
	}
	return changes, err
}

// list returns the grants, or those of one peer if peer is not empty.
func (g grants) list(ctx context.Context, peer string, now time.Time) ([]Grant, error) {
	term := ""
	if peer != "" {
		term = "peer:" + wire.HashOf(peer)
	}
	out := []Grant{}
	for grant, err := range store.DecodeAll(ctx, g.records, nsConsents, term, now, decodeGrant) {
		if err != nil {
			return nil, err
		}
		out = append(out, grant)
	}
	return out, nil
}

// findCovering returns a live grant that covers every type, or nil if no grant does. It prefers the grant that the
// message used up in an earlier attempt, and then a lasting one. If it returns a one-time grant that is not used up, it
// also returns the change that uses up the grant.
func (g grants) findCovering(ctx context.Context, peer string, types []string, messageName string, now time.Time) (*Grant, []store.Change, error) {
	list, err := g.list(ctx, peer, now)
	if err != nil {
		return nil, nil, err
	}
	list = slices.DeleteFunc(list, func(grant Grant) bool { return !grant.covers(types, messageName, now) })
	if len(list) == 0 {
		return nil, nil, nil
	}
	rank := func(grant Grant) int {
		switch {
		case grant.Used == messageName:
			return 0
		case !grant.Constraints.OneTime:
			return 1
		}
		return 2
	}
	best := slices.MinFunc(list, func(x, y Grant) int { return rank(x) - rank(y) })
	if rank(best) < 2 {
		return &best, nil, nil
	}
	best.Used = messageName
	return &best, []store.Change{best.change(best.rev)}, nil
}
