package a2a

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/remote"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsPeers has what we know about the agents that we write to, by address.
const nsPeers = "a2a/peers"

const cardMaxAge = 10 * time.Minute // how long a card is used before it is fetched again

// knownAgent is an agent that we write to.
type knownAgent struct {
	Address   string            `json:"address"`
	Interface message.Interface `json:"interface"`
	Digest    string            `json:"digest"`        // of its card
	Key       string            `json:"key,omitempty"` // thumbprint of the signing key; "" if no signature can be checked
	Fetched   time.Time         `json:"fetched"`

	agent remote.Agent
}

// errPinned means that a card is not signed by the key that we know, or that an unsigned card names another interface.
var errPinned = errors.New("the agent card has changed in a way that its key does not vouch for; if you trust the new card, run: agentmesh a2a unpin ADDRESS")

// locate returns where the card of an agent is, the token for the agent, and which hosts a call may reach. The URL of a
// link may lead anywhere, because the owner configured it. The guard of the HTTP client checks any other URL.
func (o *outbound) locate(a bridge.Address) (base *url.URL, token client.Credential, reach client.Reach, err error) {
	text := a.Peer
	if l, ok := o.links.Find(a.Link); ok {
		text, token, reach = l.URL, l.Token, client.Owner
	} else if a.Link != bridge.WebLink {
		return nil, "", 0, fmt.Errorf("there is no a2a link %s", a.Link)
	}
	base, err = url.Parse(text)
	if err != nil || base.Host == "" {
		return nil, "", 0, errors.New("an A2A agent is named by an absolute URL")
	}
	if reach != client.Owner {
		reach = o.reachOf(base)
	}
	return base, token, reach, nil
}

// reachOf returns the reach of the URLs that the card of the agent at base names. Only an agent on this machine may
// name other addresses of this machine.
func (o *outbound) reachOf(base *url.URL) client.Reach {
	return client.StrangersReach(o.cfg.Local && client.IsLoopbackURL(base))
}

// resolve returns the agent at an address, from its card. The card is fetched again if the stored one has reached
// maxAge, and always if maxAge is 0. A signed card must stay signed by the same key; an unsigned card must keep its
// interface.
func (o *outbound) resolve(ctx context.Context, a bridge.Address, maxAge time.Duration) (knownAgent, error) {
	base, token, reach, err := o.locate(a)
	if err != nil {
		return knownAgent{}, err
	}
	now := time.Now()
	known, rev := knownAgent{}, store.Absent
	rec, err := o.records.Get(ctx, nsPeers, wire.HashOf(a.String()), now)
	switch {
	case err == nil:
		rev = rec.Rev
		if err := json.Unmarshal(rec.Body, &known); err != nil {
			return knownAgent{}, err
		}
	case !errors.Is(err, store.ErrNotFound):
		return knownAgent{}, client.RetryLater(err)
	}
	if maxAge == 0 || now.Sub(known.Fetched) >= maxAge {
		found, err := o.fetchCard(ctx, base, reach)
		if err != nil {
			return knownAgent{}, err
		}
		hasChanged := known.Address != "" && known.Digest != found.Digest
		if known.Key != "" && found.Key != known.Key || hasChanged && known.Key == "" && found.Interface != known.Interface {
			return knownAgent{}, errPinned
		}
		found.Address, found.Fetched = a.String(), now.UTC()
		change := store.Change{IfRev: rev, Record: store.Record{NS: nsPeers, Key: wire.HashOf(a.String()), Body: wire.MustMarshal(found)}}
		if err := o.records.Apply(ctx, []store.Change{change}, now); err != nil && !errors.Is(err, store.ErrConflict) {
			return knownAgent{}, client.RetryLater(err)
		}
		known = found
	}
	known.agent = remote.Agent{Interface: known.Interface, Token: token, Reach: o.reachOf(base)}
	iface, err := url.Parse(known.Interface.URL)
	switch {
	case err != nil:
		return knownAgent{}, errors.New("the agent card names an interface that is not a URL")
	case iface.Host == base.Host && iface.Scheme == base.Scheme:
		known.agent.Reach = reach
	case token != "":
		return knownAgent{}, errors.New("the agent card names an interface at another host, which must not get the token of the link")
	}
	return known, nil
}

// unpin forgets an agent, so that its next card is taken as it is.
func (o *outbound) unpin(ctx context.Context, address string) (Pin, error) {
	a, err := bridge.ParseAddress(address)
	if err != nil || a.Kind != Kind {
		return Pin{}, wire.ErrQuery.At("address must be a2a:LINK/agent or a2a:https://HOST")
	}
	now := time.Now()
	rec, err := o.records.Get(ctx, nsPeers, wire.HashOf(a.String()), now)
	if errors.Is(err, store.ErrNotFound) {
		return Pin{Address: a.String()}, nil
	}
	if err == nil {
		err = o.records.Apply(ctx, []store.Change{{IfRev: store.Any, Delete: true, Record: store.Record{NS: rec.NS, Key: rec.Key}}}, now)
	}
	return Pin{Address: a.String(), Pinned: err == nil}, err
}

// cardURLs returns the URLs to try for the card of the agent at base, in order. Several agents may share a host, as
// behind a relay, so the card below the path of base comes before the card of the host.
func cardURLs(base *url.URL) []*url.URL {
	at := func(path string) *url.URL { return &url.URL{Scheme: base.Scheme, Host: base.Host, Path: path} }
	path := strings.TrimSuffix(base.Path, "/")
	if strings.HasSuffix(path, ".json") {
		return []*url.URL{at(path)}
	}
	list := []*url.URL{at(path + message.PathCard), at(path + message.PathOldCard)}
	if path != "" {
		list = append(list, at(message.PathCard), at(message.PathOldCard))
	}
	return list
}

// readCard reads the card of the agent at base. It tries the next URL if the answer at one URL has no valid card, but
// not if the call failed or the status means a temporary failure.
func (o *outbound) readCard(ctx context.Context, base *url.URL, reach client.Reach) (card wire.Value, err error) {
	for _, at := range cardURLs(base) {
		var status int
		var data []byte
		if status, data, err = o.get(ctx, at.String(), reach, message.MaxCard); err != nil {
			return wire.Value{}, err
		}
		if status == http.StatusOK {
			if card, err = message.ReadCard(data); err == nil {
				return card, nil
			}
			err = fmt.Errorf("read the agent card: %w", err)
			continue
		}
		err = fmt.Errorf("the agent card at %s answers HTTP %d", base.Host, status)
		if client.IsRetryStatus(status) {
			return wire.Value{}, &client.SendError{Retry: true, Status: status, Cause: err}
		}
	}
	return wire.Value{}, err
}

// ReadCard implements [bridge.CardReader].
func (b *Bridge) ReadCard(ctx context.Context, address bridge.Address) (wire.Value, error) {
	base, _, reach, err := b.out.locate(address)
	if err != nil {
		return wire.Value{}, err
	}
	return b.out.readCard(ctx, base, reach)
}

// fetchCard fetches a card and checks its signature, if it has one that we can check.
func (o *outbound) fetchCard(ctx context.Context, base *url.URL, reach client.Reach) (knownAgent, error) {
	card, err := o.readCard(ctx, base, reach)
	if err != nil {
		return knownAgent{}, err
	}
	iface, ok := message.FindInterface(card)
	if !ok {
		return knownAgent{}, errors.New("the agent card names no interface for A2A 1.0 or 0.3 over JSON-RPC or HTTP+JSON")
	}
	digest := message.Digest(card)
	found := knownAgent{Interface: iface, Digest: hex.EncodeToString(digest[:])}
	found.Key, err = o.signerOf(ctx, card, base, reach)
	return found, err
}

// signerOf returns the thumbprint of the key that signed a card, or "" if the card has no signature that we can check.
// It fails if such signatures exist and none verifies, or if a call for their keys fails.
func (o *outbound) signerOf(ctx context.Context, card wire.Value, base *url.URL, reach client.Reach) (thumbprint string, failure error) {
	for _, s := range message.SignaturesOf(card) {
		keySet := &url.URL{Scheme: base.Scheme, Host: base.Host, Path: message.PathKeys}
		keyReach := reach
		if u, err := url.Parse(s.KeySet); err == nil && s.KeySet != "" {
			if keySet = u; u.Host != base.Host || u.Scheme != base.Scheme {
				keyReach = o.reachOf(base) // the card names the URL, so the guard checks it
			}
		}
		status, data, err := o.get(ctx, keySet.String(), keyReach, message.MaxCard)
		if err != nil {
			return "", err
		}
		keys, err := wire.ParseForeign(data, 8, 2000) // at most 8 levels deep, with at most 2000 values
		if status != http.StatusOK {
			err = fmt.Errorf("HTTP %d", status)
		}
		if err != nil {
			failure = fmt.Errorf("the keys of the agent card cannot be read: %w", err)
			continue
		}
		if thumbprint, failure = s.Verify(card, keys); failure == nil {
			return thumbprint, nil
		}
	}
	return "", failure
}

// get fetches a document. If another attempt may help, the error is a *client.SendError with Retry set.
func (o *outbound) get(ctx context.Context, from string, reach client.Reach, limit int) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := o.cfg.HTTP.Do(ctx, reach, req)
	if _, refused := errors.AsType[*client.GuardError](err); refused {
		return 0, nil, err
	}
	if err != nil {
		return 0, nil, client.RetryLater(err)
	}
	body, err = client.ReadAll(resp, limit)
	if err != nil && !errors.Is(err, client.ErrAnswerTooLarge) {
		err = &client.SendError{Retry: true, Status: resp.StatusCode, Cause: err}
	}
	return resp.StatusCode, body, err
}
