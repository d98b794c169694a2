package directory

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

// proofWindow is how far the time of a key proof may be from our clock, in both directions (AM-62).
const proofWindow = 5 * time.Minute

// target is the request that a key proof is made for.
type target struct {
	method string
	path   string // below the base: "/agents", "/agents/am_…"
	host   string // of the request
}

// validProof is a key proof that was verified.
type validProof struct {
	header string
	text   string // the signed lines
}

// checkProof verifies the key proof of a submission (AM-62). A submission without a proof is not an error: the result
// is then zero.
func (r *Registry) checkProof(s Submission, t target, c candidate, now time.Time) (validProof, error) {
	if s.Proof == "" {
		return validProof{}, nil
	}
	proof, ok := wire.ParseKeyProof(s.Proof)
	if !ok {
		return validProof{}, wire.ErrKeyProof.Because(errors.New("malformed header"))
	}
	if age := now.Sub(proof.Time); age > proofWindow || age < -proofWindow {
		return validProof{}, wire.ErrKeyProof.Because(errors.New("outside its time"))
	}
	digest := signing.Digest(c.submitted)
	window := signing.Window{From: now.Add(-proofWindow), To: now.Add(proofWindow)}
	var err error
	for _, base := range bases(r.cfg.BaseURL, r.cfg.Local, t.host) {
		text := wire.KeyProofText(t.method, base.path+t.path, base.url, proof.Stamp, digest)
		if err = c.key.Verify(text, proof.Signature, window, now); err == nil {
			return validProof{header: s.Proof, text: string(text)}, nil
		}
	}
	return validProof{}, wire.ErrKeyProof.Because(err)
}

// base is one form of the directory's base URL, and the path in it.
type base struct{ url, path string }

// bases returns the forms of a directory's base that a proof may name: own and, in the local profile, the other
// loopback names with the port of own or of the request (AM-62).
func bases(own string, local bool, host string) []base {
	u, err := url.Parse(own)
	if err != nil {
		return nil
	}
	list := []base{{own, u.EscapedPath()}}
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
	if httpapi.LoopbackHost(host) {
		add(host)
		if _, port, err := net.SplitHostPort(host); err == nil {
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

// nextMeta returns the meta of a card that replaces held (AM-60). A new key needs a key proof. If the old key proves
// the change too, the change is a rotation, otherwise a replacement.
func (r *Registry) nextMeta(held store.Card, s Submission, c candidate, p validProof, now time.Time) (listing.Meta, error) {
	m, err := listing.ParseMeta(held)
	if err != nil {
		return listing.Meta{}, err
	}
	before, err := listing.Text(held, "public_key")
	if err != nil {
		return listing.Meta{}, err
	}
	if at, err := listing.Text(held, "endpoint"); err != nil || at != c.card.Endpoint {
		m.ForgetEndpoint() // the proof was for another endpoint
	}
	m.Derived, m.HandedOver = c.hasDerivedID(now), false
	if old, err := r.keys.Parse(before); err == nil && old.Kind() == c.key.Kind() && bytes.Equal(old.Canonical(), c.key.Canonical()) {
		if p.header != "" || !bytes.Equal(held.Body, c.served) {
			m.SetProof(p.header, p.text, now) // the old proof does not cover the changed card
		}
		return m, nil
	}
	if p.header == "" {
		return listing.Meta{}, wire.ErrKeyProof.At("a changed public_key must prove itself")
	}
	m.RetireKey(before, now)
	m.SetProof(p.header, p.text, now)
	if s.PreviousProof == "" {
		m.Replaced = now
		return m, nil
	}
	if err := r.checkPreviousProof(before, s, p, now); err != nil {
		return listing.Meta{}, err
	}
	m.Current.PreviousProof, m.Current.Card = s.PreviousProof, c.submitted
	return m, nil
}

// checkPreviousProof verifies the proof by the old key, which must sign the same lines as the new key.
func (r *Registry) checkPreviousProof(before string, s Submission, p validProof, now time.Time) error {
	proof, ok := wire.ParseKeyProof(s.PreviousProof)
	if !ok {
		return wire.ErrKeyProof.Because(errors.New("malformed previous proof"))
	}
	if mine, _ := wire.ParseKeyProof(p.header); mine.Stamp != proof.Stamp {
		return wire.ErrKeyProof.Because(errors.New("the two proofs differ in time"))
	}
	old, err := r.keys.Parse(before)
	if err == nil {
		err = old.Usable(now)
	}
	if err == nil {
		window := signing.Window{From: now.Add(-proofWindow), To: now.Add(proofWindow)}
		err = old.Verify([]byte(p.text), proof.Signature, window, now)
	}
	if err != nil {
		return wire.ErrKeyProof.Because(err)
	}
	return nil
}
