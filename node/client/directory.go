package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// Directory is a directory that the owner configured. It is safe for concurrent use. Every error of its methods is a
// *[DirectoryError], except for mistakes in the caller's arguments.
type Directory struct {
	// Base is the base URL without a trailing slash: "https://directory.example/v1".
	Base string
	// Loopback is true if the directory is on this machine. In the local profile, its cards may then name loopback
	// endpoints (AM-82). [NewDirectory] sets it from the host of Base.
	Loopback bool
	// Invite is sent with registrations, for a directory that requires one (AM-56).
	Invite Credential
	// Alias is a stable name for a directory whose URL may change with the process that hosts it; empty means Base.
	// Our registration, with its credential, and the position of a mirror in the change feed are stored under this
	// name. Pins name Base.
	Alias string

	path   string // path of Base
	inside bool   // the directory is in this process
	call   func(*http.Request) (*http.Response, error)
}

// StoredName returns the name under which data about the directory is stored: Alias, or Base if Alias is empty.
func (d *Directory) StoredName() string { return cmp.Or(d.Alias, d.Base) }

// NewDirectory returns a client for the directory at base. If rt is nil, calls go through h with [Reach] Owner.
// Otherwise they go through rt, so that a process can call its own directory without a socket; see [InProcess].
func NewDirectory(base string, h *HTTP, rt http.RoundTripper) *Directory {
	d := &Directory{Base: strings.TrimRight(base, "/")}
	if u, err := url.Parse(d.Base); err == nil {
		d.path, d.Loopback = u.EscapedPath(), IsLoopbackURL(u)
	}
	d.call = func(req *http.Request) (*http.Response, error) { return h.Do(req.Context(), Owner, req) }
	if rt != nil {
		d.call = rt.RoundTrip
		_, d.inside = rt.(inProcess)
	}
	return d
}

// IsInside reports whether the directory is in this process, so that calls need no network.
func (d *Directory) IsInside() bool { return d.inside }

// The largest answers of a directory, in bytes.
const (
	maxCardAnswer = 256 << 10
	maxKeysAnswer = 1 << 20
	maxPageAnswer = 8 << 20 // 100 cards of 64 KiB and the data around them
)

type request struct {
	op, method, path string // path is added to Base
	header           http.Header
	body             []byte
	cred             Credential
	max              int           // largest answer in bytes; 0 means maxCardAnswer
	timeout          time.Duration // 0 means defaultAnswer
}

type response struct {
	status int
	header http.Header
	body   []byte
}

// do makes a call. It returns an error unless the status of the answer is one of expected.
func (d *Directory) do(ctx context.Context, r request, expected ...int) (response, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.timeout, defaultAnswer))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, d.Base+r.path, bytes.NewReader(r.body))
	if err != nil {
		return response{}, d.unreachable(r.op, err)
	}
	if r.header != nil {
		req.Header = r.header
	}
	req.Header.Set("Accept", "application/json")
	if len(r.body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.cred != "" {
		req.Header.Set("Authorization", "Bearer "+string(r.cred))
	}
	resp, err := d.call(req)
	if err != nil {
		return response{}, d.unreachable(r.op, err)
	}
	body, err := ReadAll(resp, cmp.Or(r.max, maxCardAnswer))
	if errors.Is(err, ErrAnswerTooLarge) {
		return response{}, d.badAnswer(r.op, resp.StatusCode, err)
	} else if err != nil {
		return response{}, d.unreachable(r.op, err)
	}
	if slices.Contains(expected, resp.StatusCode) {
		return response{resp.StatusCode, resp.Header, body}, nil
	}
	return response{}, d.errorFor(r.op, resp, body)
}

// Register registers card. It returns the answer of the directory, and the card with the id that the directory
// assigned: some directories replace agent_id, and all later messages must use the new id (AM-57). If key is not nil,
// the registration includes a proof of the key (AM-62).
func (d *Directory) Register(ctx context.Context, card wire.Value, cred Credential, key *signing.PrivateKey) (wire.Registered, wire.Value, error) {
	reg, err := d.submit(ctx, request{op: opRegister, method: http.MethodPost, path: "/agents", cred: cred}, card, key, nil)
	if err != nil {
		return wire.Registered{}, wire.Value{}, err
	}
	return reg, card.With("agent_id", wire.Text(string(reg.AgentID))), nil
}

// Renew replaces the registered card with card and restarts its lifetime. RegisteredAt of the result may be zero.
func (d *Directory) Renew(ctx context.Context, card wire.Value, cred Credential, key *signing.PrivateKey) (wire.Registered, error) {
	return d.put(ctx, opRenew, card, cred, key, nil)
}

// Rotate renews the registration like [Directory.Renew], with a card that has a new key. The previous key vouches for
// the new one, so that peers accept it without asking their owners (AM-60).
func (d *Directory) Rotate(ctx context.Context, card wire.Value, cred Credential, key, previous *signing.PrivateKey) (wire.Registered, error) {
	return d.put(ctx, opRotate, card, cred, key, previous)
}

// put replaces the card that is registered. previous is the key before a rotation, otherwise nil.
func (d *Directory) put(ctx context.Context, op string, card wire.Value, cred Credential, key, previous *signing.PrivateKey) (wire.Registered, error) {
	path, err := agentPath(wire.AgentID(card.GetStr("agent_id")))
	if err != nil {
		return wire.Registered{}, err
	}
	return d.submit(ctx, request{op: op, method: http.MethodPut, path: path, cred: cred}, card, key, previous)
}

// submit sends a card with the proofs of its keys. The answer to a renewal must have the id of the card.
func (d *Directory) submit(ctx context.Context, r request, card wire.Value, key, previous *signing.PrivateKey) (wire.Registered, error) {
	r.header, r.body = http.Header{}, card.JSON()
	if r.op == opRegister && d.Invite != "" {
		r.header.Set(wire.HeaderInvite, string(d.Invite))
	}
	if err := d.prove(r, card, key, previous); err != nil {
		return wire.Registered{}, err
	}
	resp, err := d.do(ctx, r, http.StatusCreated, http.StatusOK)
	if err != nil {
		return wire.Registered{}, err
	}
	reg, err := parseRegistration(resp.body)
	if err == nil && r.op != opRegister && string(reg.AgentID) != card.GetStr("agent_id") {
		err = errors.New("the answer names another agent")
	}
	if err != nil {
		return wire.Registered{}, d.badAnswer(r.op, resp.status, err)
	}
	own := resp.header.Get(wire.HeaderDirectory)
	if own != "" && own != d.Base && strings.HasPrefix(card.GetStr("endpoint"), d.Base+"/mailbox/") {
		return wire.Registered{}, &DirectoryError{Op: r.op, Directory: d.Base, Kind: ErrOtherAddress, Status: resp.status, cause: fmt.Errorf("its own address is %s", wire.OneLine(own, 200))}
	}
	return reg, nil
}

// Withdraw removes the card from the directory.
func (d *Directory) Withdraw(ctx context.Context, id wire.AgentID, cred Credential) error {
	path, err := agentPath(id)
	if err != nil {
		return err
	}
	_, err = d.do(ctx, request{op: opWithdraw, method: http.MethodDelete, path: path, cred: cred}, http.StatusNoContent, http.StatusOK)
	return err
}

// prove adds the key proofs of AM-62 and AM-60 to the header of the request.
func (d *Directory) prove(r request, card wire.Value, key, previous *signing.PrivateKey) error {
	stamp := wire.FormatTime(time.Now())
	text := wire.KeyProofText(r.method, d.path+r.path, d.Base, stamp, signing.Digest(card))
	for _, proof := range []struct {
		header string
		key    *signing.PrivateKey
	}{{wire.HeaderKeyProof, key}, {wire.HeaderPreviousKeyProof, previous}} {
		if proof.key == nil {
			continue
		}
		sig, err := proof.key.Sign(text)
		if err != nil {
			return fmt.Errorf("make the key proof: %w", err)
		}
		r.header.Set(proof.header, wire.KeyProof{Stamp: stamp, Signature: sig}.Header())
	}
	return nil
}

func agentPath(id wire.AgentID) (string, error) {
	if !id.Valid() {
		return "", errors.New("the agent id must be am_ and 1 to 128 characters from A-Z a-z 0-9 . _ -")
	}
	return "/agents/" + string(id), nil // the alphabet of AM-1 needs no escapes
}

func parseRegistration(body []byte) (wire.Registered, error) {
	v, err := wire.ParseObject(body)
	if err != nil {
		return wire.Registered{}, err
	}
	reg := wire.Registered{AgentID: wire.AgentID(v.GetStr("agent_id"))}
	if !reg.AgentID.Valid() {
		return wire.Registered{}, errors.New("the answer has no agent id")
	}
	var ok bool
	if reg.ExpiresAt, ok = wire.ParseTime(v.GetStr("expires_at")); !ok {
		return wire.Registered{}, errors.New("the answer has no time of expiry")
	}
	reg.RegisteredAt, _ = wire.ParseTime(v.GetStr("registered_at"))
	return reg, nil
}
