package submission

import (
	"bytes"
	"errors"
	"net"
	"net/url"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// ProofWindow is how far the time of a key proof may be from our clock, in both directions (AM-62).
const ProofWindow = 5 * time.Minute

// Target is the request that a key proof is made for.
type Target struct {
	Method string
	Path   string // below the base: "/agents", "/agents/am_…"
}

// Proof is a key proof that was verified.
type Proof struct {
	Header string
	Text   string // the signed lines
}

// CheckProof verifies the key proof of a submission (AM-62). For a submission without a proof, it returns the zero
// Proof.
func (r Rules) CheckProof(s Submission, t Target, c Candidate, now time.Time) (Proof, error) {
	if s.Proof == "" {
		return Proof{}, nil
	}
	proof, ok := wire.ParseKeyProof(s.Proof)
	if !ok {
		return Proof{}, wire.ErrKeyProof.Because(errors.New("malformed header"))
	}
	if age := now.Sub(proof.Time); age > ProofWindow || age < -ProofWindow {
		return Proof{}, wire.ErrKeyProof.Because(errors.New("the time of the proof is too far from now"))
	}
	digest := signing.Digest(c.submitted)
	window := signing.Window{From: now.Add(-ProofWindow), To: now.Add(ProofWindow)}
	var err error
	for _, base := range bases(r.BaseURL, r.Local, s.Host) {
		text := wire.KeyProofText(t.Method, base.path+t.Path, base.url, proof.Stamp, digest)
		if err = c.Key.Verify(text, proof.Signature, window, now); err == nil {
			return Proof{s.Proof, string(text)}, nil
		}
	}
	return Proof{}, wire.ErrKeyProof.Because(err)
}

type base struct{ url, path string }

// bases returns the forms of a directory's base that a proof may name: baseURL and, in the local profile, the other
// loopback names with the port of baseURL or of the request (AM-62).
func bases(baseURL string, local bool, requestHost string) []base {
	u, err := url.Parse(baseURL)
	if err != nil {
		return nil
	}
	list := []base{{baseURL, u.EscapedPath()}}
	if !local {
		return list
	}
	add := func(host string) {
		b := base{u.Scheme + "://" + host + u.EscapedPath(), u.EscapedPath()}
		if !slices.Contains(list, b) {
			list = append(list, b)
		}
	}
	ports := []string{u.Port()}
	if httpapi.LoopbackHost(requestHost) {
		add(requestHost)
		if _, port, err := net.SplitHostPort(requestHost); err == nil {
			ports = append(ports, port)
		}
	}
	for _, port := range ports {
		for _, name := range []string{"127.0.0.1", "localhost", "::1"} {
			if port != "" {
				add(net.JoinHostPort(name, port))
			}
		}
	}
	return list
}

// NextMeta returns the Meta of a card that replaces held (AM-60). A new key needs a key proof. If the old key proves
// the change too, the change is a rotation, otherwise a replacement.
func (r Rules) NextMeta(held store.Card, s Submission, c Candidate, p Proof, now time.Time) (listing.Meta, error) {
	m, err := listing.ParseMeta(held)
	if err != nil {
		return listing.Meta{}, err
	}
	oldKey, err := listing.Text(held, "public_key")
	if err != nil {
		return listing.Meta{}, err
	}
	if at, err := listing.Text(held, "endpoint"); err != nil || at != c.Card.Endpoint {
		m.ForgetEndpoint() // the proof was for another endpoint
	}
	m.Derived, m.HandedOver = c.HasDerivedID(now), false
	if old, err := r.Keys.Parse(oldKey); err == nil && old.Kind() == c.Key.Kind() && bytes.Equal(old.Canonical(), c.Key.Canonical()) {
		if p.Header != "" || !bytes.Equal(held.Body, c.Served) {
			m.SetProof(p.Header, p.Text, now) // the old proof does not cover the changed card
		}
		return m, nil
	}
	if p.Header == "" {
		return listing.Meta{}, wire.ErrKeyProof.At("a changed public_key needs a key proof")
	}
	m.RetireKey(oldKey, now)
	m.SetProof(p.Header, p.Text, now)
	if s.PreviousProof == "" {
		m.Replaced = now
		return m, nil
	}
	if err := r.checkPreviousProof(oldKey, s, p, now); err != nil {
		return listing.Meta{}, err
	}
	m.Current.PreviousProof, m.Current.Card = s.PreviousProof, c.submitted
	return m, nil
}

// checkPreviousProof verifies the proof by the old key, which must sign the same lines as the new key.
func (r Rules) checkPreviousProof(oldKey string, s Submission, p Proof, now time.Time) error {
	oldProof, ok := wire.ParseKeyProof(s.PreviousProof)
	if !ok {
		return wire.ErrKeyProof.Because(errors.New("malformed previous proof"))
	}
	if newProof, _ := wire.ParseKeyProof(p.Header); newProof.Stamp != oldProof.Stamp {
		return wire.ErrKeyProof.Because(errors.New("the two proofs differ in time"))
	}
	old, err := r.Keys.Parse(oldKey)
	if err == nil {
		err = old.Usable(now)
	}
	if err == nil {
		window := signing.Window{From: now.Add(-ProofWindow), To: now.Add(ProofWindow)}
		err = old.Verify([]byte(p.Text), oldProof.Signature, window, now)
	}
	if err != nil {
		return wire.ErrKeyProof.Because(err)
	}
	return nil
}

// CheckSourceProof verifies a key proof that another directory passes on. The proof was made for a request to that
// directory, whose base is baseURL (AM-62). loopback means that baseURL is on loopback.
func (r Rules) CheckSourceProof(header, baseURL string, loopback bool, c Candidate, now time.Time) (provenAt time.Time, text string, ok bool) {
	proof, ok := wire.ParseKeyProof(header)
	if !ok || proof.Time.After(now.Add(ProofWindow)) {
		return time.Time{}, "", false
	}
	digest := signing.Digest(c.submitted)
	window := signing.Window{From: proof.Time.Add(-ProofWindow), To: proof.Time.Add(ProofWindow)}
	for _, base := range bases(baseURL, loopback && r.Local, "") {
		for _, t := range []Target{{"POST", "/agents"}, {"PUT", "/agents/" + string(c.Card.ID)}} {
			text := wire.KeyProofText(t.Method, base.path+t.Path, base.url, proof.Stamp, digest)
			if c.Key.Verify(text, proof.Signature, window, now) == nil {
				return proof.Time, string(text), true
			}
		}
	}
	return time.Time{}, "", false
}
