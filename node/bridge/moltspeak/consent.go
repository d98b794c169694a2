package moltspeak

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

const askConsent = "moltspeak-consent"

// Grant is a consent that the owner gave: what a peer may get, for what, and until when (MS-42). Times are Unix
// seconds, as tokens have them.
type Grant struct {
	ID      string   `json:"jti"`
	Issuer  string   `json:"iss"`
	Subject string   `json:"sub"` // whose data
	Peer    string   `json:"aud"`
	Issued  int64    `json:"iat"`
	Expires int64    `json:"exp"`
	Scope   []string `json:"scope"`
	Purpose string   `json:"purpose"`
	Revoked int64    `json:"revoked,omitempty"`

	Constraints Constraints `json:"constraints,omitzero"`
	Used        string      `json:"used,omitempty"` // by which message, where it is for one alone
}

// Constraints narrow a consent. That it is for one message is ours to keep; the other two are the peer's, who reads them
// in its token.
type Constraints struct {
	OneTime   bool `json:"one_time,omitempty"`
	NoStorage bool `json:"no_storage,omitempty"`
	NoForward bool `json:"no_forward,omitempty"`
}

// live says whether the grant covers now.
func (g Grant) live(now time.Time) bool {
	return g.Revoked == 0 && now.Unix() < g.Expires && g.Used == ""
}

// covers says whether the grant covers a message of ours with that name.
func (g Grant) covers(types []string, message string, now time.Time) bool {
	if g.Used == message {
		g.Used = "" // it is sent again
	}
	return g.live(now) && !slices.ContainsFunc(types, func(t string) bool { return !slices.Contains(g.Scope, t) })
}

// change writes the grant over the one that was read.
func (g Grant) change(rev store.Rev) store.Change {
	return store.Change{IfRev: rev, Max: 10_000, Record: store.Record{
		NS: nsConsents, Key: g.ID, Body: encode(g), Terms: []string{"peer:" + hash(g.Peer)}, Expires: time.Unix(g.Expires, 0).Add(30 * 24 * time.Hour),
	}}
}

// durations are how long a consent lasts. A permanent one ends, too, after a year: it can be asked for again.
var durations = map[string]time.Duration{"session": sessionLife, "24h": 24 * time.Hour, "7d": 7 * 24 * time.Hour, "permanent": 365 * 24 * time.Hour}

// consentAsk is the body of the question to the owner. Purpose and human are the peer's words: untrusted.
type consentAsk struct {
	Peer     string   `json:"peer"`
	Types    []string `json:"data_types"`
	Purpose  string   `json:"purpose"`
	Duration string   `json:"duration"`
	Human    string   `json:"human,omitempty"`
	Re       string   `json:"message_id"`

	Constraints Constraints `json:"constraints,omitzero"`
}

// consent is the consent operation.
func (b *Bridge) consent(c *exchange, p Consent) (answer, *Error) {
	respond := func(status string, data wire.Value) answer {
		return answer{op: OpConsentResponse, p: Respond{Status: status, Data: data}.value()}
	}
	switch p.Action {
	case "request":
		return b.askForConsent(c, p)
	case "grant": // a peer's word about its own data: shown as claimed, trusted for nothing
		return respond("success", wire.Obj(wire.TextField("action", "noted"))), nil
	}
	g, ok := b.checkToken(c.ctx, p.Token, c.m.From.Name(), c.now)
	if p.Action == "verify" {
		return respond("success", wire.Obj(wire.Field("valid", wire.Bool(ok)))), nil
	}
	if !ok {
		return answer{}, faultAt(CodeConsent, "p.consent_token", "is no consent of yours")
	}
	if err := b.Revoke(c.ctx, g.ID, c.now); err != nil {
		return answer{}, fault(CodeInternal).because(err)
	}
	return respond("success", wire.Obj(wire.Field("revoked", wire.Bool(true)))), nil
}

// askForConsent asks the owner. Of one peer one question waits at a time: the same question again gets the same answer, and
// another one has to wait for the owner's decision.
func (b *Bridge) askForConsent(c *exchange, p Consent) (answer, *Error) {
	if c.standing == acl.Rejected {
		return answer{}, fault(CodeCapability)
	}
	for _, t := range p.Types {
		if !validID(t) {
			return answer{}, faultAt(CodeInvalidParam, "p.data_types", "must be printable")
		}
	}
	question := consentAsk{
		Peer: c.m.From.Name(), Types: p.Types, Purpose: wire.OneLine(p.Purpose, maxText), Duration: p.Duration,
		Human: wire.OneLine(p.Human, maxText), Re: c.m.ID, Constraints: p.Constraints,
	}
	ask, err := question.open(b, c)
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrQuota) {
		ask, err = question.alike(b, c)
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		e := fault(CodeRateLimit).because(err)
		e.Delay = consentDelay
		return answer{}, e
	case err != nil:
		return answer{}, fault(CodeInternal).because(err)
	}
	data := wire.Obj(wire.TextField("action", wire.ActionPending), wire.TextField("estimated_response", ask.Expires.Format(time.RFC3339)),
		wire.TextField("reason", "The owner of this agent decides on consent."))
	return answer{op: OpConsentResponse, p: Respond{Status: "partial", Data: data}.value(), status: http.StatusAccepted}, nil
}

// consentDelay is when a peer may ask again for consent if there is no room for its question.
const consentDelay = time.Minute

// open opens the question. It fails with store.ErrConflict if another question of the peer waits.
func (question consentAsk) open(b *Bridge, c *exchange) (acl.Ask, error) {
	slot := acl.Slot{Key: "moltspeak-consent/" + hash(c.address.String()), Term: "moltspeak-consent", Max: maxConsentAsks}
	var room []store.Change
	if !c.known() {
		slot.Term, slot.Max, slot.Sources = "moltspeak-consent-stranger", strangersConsentAsks, c.sources
		var err error
		if room, err = b.cfg.Asks.MakeRoom(c.ctx, slot, c.now); err != nil {
			return acl.Ask{}, err
		}
	}
	body := encode(question)
	ask, changes := b.cfg.Asks.Open(acl.Ask{
		Kind: askConsent, Subject: c.address.String(), Title: "A MoltSpeak agent asks for consent to personal data", Rule: "moltspeak.consent",
		Body: body, Hash: acl.HashBody(body), Choices: []acl.Choice{acl.Approve, acl.Reject}, Created: c.now.UTC(),
	}, slot)
	changes = append(room, changes...)
	if err := b.records.Apply(c.ctx, changes, c.now); err != nil {
		return acl.Ask{}, err
	}
	return ask, nil
}

// alike returns the open question of the peer if it asks the same in another message; else it fails with
// store.ErrNotFound.
func (question consentAsk) alike(b *Bridge, c *exchange) (acl.Ask, error) {
	asks, _, err := b.cfg.Asks.List(c.ctx, acl.AskFilter{Subject: c.address.String(), State: acl.AskPending}, "", 100, c.now)
	if err != nil {
		return acl.Ask{}, err
	}
	for _, ask := range asks {
		var open consentAsk
		if ask.Kind != askConsent || json.Unmarshal(ask.Body, &open) != nil {
			continue
		}
		if open.Re = question.Re; string(encode(open)) == string(encode(question)) {
			return ask, nil
		}
	}
	return acl.Ask{}, store.ErrNotFound
}

// consentResolver carries out what the owner decided about a request.
type consentResolver struct{ b *Bridge }

// Resolve implements [acl.Resolver].
func (r consentResolver) Resolve(ctx context.Context, ask acl.Ask, d acl.Decision) error {
	var body consentAsk
	if err := json.Unmarshal(ask.Body, &body); err != nil {
		return err
	}
	peer, ok := ParseName(body.Peer)
	if !ok {
		return errors.New("the question names no peer")
	}
	changes, answer := d.Changes, Respond{Status: "error", Data: wire.Obj(wire.TextField("action", "rejected"))}
	if d.Choice == acl.Approve {
		if err := ask.CheckBody(); err != nil {
			return err
		}
		subject := body.Human
		if subject == "" {
			subject = "owner@" + r.b.self.Org
		}
		g := Grant{
			ID: uuid(random32()), Issuer: r.b.self.Name(), Subject: subject, Peer: body.Peer, Issued: d.Now.Unix(),
			Expires: d.Now.Add(durations[body.Duration]).Unix(), Scope: body.Types, Purpose: body.Purpose,
			Constraints: body.Constraints,
		}
		token, err := r.b.token(g)
		if err != nil {
			return err
		}
		changes = append(changes, g.change(store.Absent))
		if p, known, err := r.b.peer(ctx, body.Peer, d.Now); err != nil {
			return err
		} else if known && !p.Chosen { // whoever has the name later must not have the consent
			p.Chosen = true
			changes = append(changes, p.change())
		}
		answer = Respond{Status: "success", Data: wire.Obj(wire.TextField("action", "granted"), wire.TextField("consent_token", token),
			wire.TextField("proof", "consent-token:"+g.ID), wire.Field("expires", wire.Int(g.Expires)), wire.Field("scope", wire.Texts(g.Scope)))}
	}
	if err := r.b.records.Apply(ctx, changes, d.Now); err != nil {
		return err
	}
	r.b.later(callback{to: peer, op: OpConsentResponse, re: body.Re, p: answer.value()})
	return nil
}

// token is a grant, signed over the canonical form without its sig, as base64url JSON (MS-42).
func (b *Bridge) token(g Grant) (string, error) {
	tree, err := wire.ValueOf(g)
	if err != nil {
		return "", err
	}
	if tree, err = sign(tree, b.cfg.Key); err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(tree.JSON()), nil
}

// checkToken says whether a token is one of ours, for this peer, not over and not revoked.
func (b *Bridge) checkToken(ctx context.Context, token, peer string, now time.Time) (Grant, bool) {
	data, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil {
		return Grant{}, false
	}
	tree, err := wire.Parse(data)
	if err != nil || tree.Kind() != wire.Object {
		return Grant{}, false
	}
	sig, _ := strings.CutPrefix(tree.GetStr("sig"), sigPrefix)
	if b.cfg.Key.Public().VerifyStrict(signing.Canonical(tree.Without("sig"), signing.Python), sig) != nil {
		return Grant{}, false
	}
	var g Grant
	_, known, err := b.read(ctx, nsConsents, tree.GetStr("jti"), &g, now)
	return g, err == nil && known && g.Peer == peer && g.live(now)
}

// Revoke ends a grant at once. Revoking twice is no error.
func (b *Bridge) Revoke(ctx context.Context, id string, now time.Time) error {
	for {
		var g Grant
		rev, ok, err := b.read(ctx, nsConsents, id, &g, now)
		if err != nil {
			return err
		}
		if !ok {
			return store.ErrNotFound
		}
		if g.Revoked != 0 {
			return nil
		}
		g.Revoked = now.Unix()
		err = b.records.Apply(ctx, []store.Change{g.change(rev)}, now)
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

// grants lists consents, those of one peer where it is named.
func (b *Bridge) grants(ctx context.Context, peer string, now time.Time) ([]Grant, error) {
	term := ""
	if peer != "" {
		term = "peer:" + hash(peer)
	}
	out := []Grant{}
	for after := ""; ; {
		page, err := b.records.List(ctx, nsConsents, term, after, 200, now)
		if err != nil {
			return nil, err
		}
		for _, rec := range page.Records {
			var g Grant
			if err := json.Unmarshal(rec.Body, &g); err != nil {
				return nil, err
			}
			out = append(out, g)
		}
		if after = page.Next; after == "" || len(out) >= 1000 {
			return out, nil
		}
	}
}

// covering finds a live grant that covers every type, and the change that uses it up where it is for one message alone;
// nil where there is none. One that lasts comes before one that is used up.
func (b *Bridge) covering(ctx context.Context, peer string, types []string, message string, now time.Time) (*Grant, []store.Change, error) {
	list, err := b.grants(ctx, peer, now)
	if err != nil {
		return nil, nil, err
	}
	slices.SortStableFunc(list, func(x, y Grant) int {
		if x.Constraints.OneTime == y.Constraints.OneTime {
			return 0
		}
		if x.Constraints.OneTime {
			return 1
		}
		return -1
	})
	for _, g := range list {
		if !g.covers(types, message, now) {
			continue
		}
		if !g.Constraints.OneTime {
			return &g, nil, nil
		}
		var fresh Grant
		rev, ok, err := b.read(ctx, nsConsents, g.ID, &fresh, now)
		if err != nil {
			return nil, nil, err
		}
		if ok && fresh.covers(types, message, now) {
			fresh.Used = message
			return &fresh, []store.Change{fresh.change(rev)}, nil
		}
	}
	return nil, nil, nil
}
