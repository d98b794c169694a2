package mess

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// A link without a key registers at its exchange and stores the key that it receives.

// restState is what a link over REST stores about its exchange.
type restState struct {
	ID          string            `json:"id,omitempty"` // our name at the exchange
	KeyHash     string            `json:"of,omitempty"` // hash of the configured key to which ID belongs; "" if ID belongs to Key
	Exchange    string            `json:"exchange,omitempty"`
	Key         client.Credential `json:"key,omitempty"`
	LegacyCodes bool              `json:"other_words,omitempty"` // the server uses the codes of [legacyCodes]
}

func (r *restRemote) stateKey() string { return "link/" + r.cfg.Name + "/rest" }

// save stores the state, and a notice to the owner if notice is not empty. The caller holds r.mu.
func (r *restRemote) save(ctx context.Context, v restState, notice string) error {
	changes := []store.Change{{Record: store.Record{NS: exchange.NSMeta, Key: r.stateKey(), Body: wire.MustMarshal(v)}, IfRev: store.Any}}
	var err error
	if notice == "" {
		err = r.cfg.Records.Apply(ctx, changes, time.Now())
	} else {
		r.cfg.Logger.Info(notice, "link", r.cfg.Name)
		err = r.cfg.notifyOwner(ctx, "the link "+r.cfg.Name+" registered", notice, changes)
	}
	if err == nil {
		r.state = &v
	}
	return client.RetryLater(err)
}

// notYet is why the exchange does not accept us now.
type notYet string

func (e notYet) Error() string { return string(e) }

// newLinkFault returns an error that makes the outbox keep its messages until the owner acts.
func newLinkFault(format string, args ...any) error {
	return client.RetryLater(&bridge.LinkFault{Why: fmt.Errorf(format, args...)})
}

// join returns the state with the key for a call: the configured key, or the key of our registration. If we have no
// key, join registers first, and stores the state before it returns.
func (r *restRemote) join(ctx context.Context) (restState, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == nil {
		var read restState
		if _, _, err := store.ReadRecord(ctx, r.cfg.Records, exchange.NSMeta, r.stateKey(), &read, time.Now()); err != nil {
			return restState{}, client.RetryLater(err)
		}
		r.state = &read
	}
	out := *r.state
	out.Key = cmp.Or(r.token, out.Key)
	out.Exchange = cmp.Or(r.exchange, exchangeOf(out.Key), out.Exchange)
	if out.Key != "" {
		return out, nil
	}
	return r.register(ctx, out)
}

// updateState changes the stored state.
func (r *restRemote) updateState(ctx context.Context, change func(*restState)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := *r.state
	change(&v)
	return r.save(ctx, v, "")
}

// exchangeOf returns the exchange id in a key (MESS-53), or "".
func exchangeOf(key client.Credential) string {
	if parts := strings.SplitN(string(key), "_", 3); len(parts) == 3 {
		return parts[1]
	}
	return ""
}

// register registers us at the exchange with POST register. The caller holds r.mu.
func (r *restRemote) register(ctx context.Context, v restState) (restState, error) {
	if !strings.Contains(r.base, exchangesPath) {
		if v.Exchange == "" {
			only, err := r.onlyExchange(ctx)
			if err != nil {
				return v, err
			}
			v.Exchange = only
		}
		if v.Exchange == "" {
			return v, newLinkFault("the server does not say which exchange is meant: name it in links[].exchange, or give the link a key in token_file")
		}
	}
	id := cmp.Or(r.as, v.ID, "agentmesh-"+strings.ToLower(rand.Text()[:8]))
	body := wire.Obj(wire.TextField("executor_id", id), wire.TextField("display_name", id))
	header := http.Header{"Accept": {"application/json"}, "Content-Type": {"application/json"}}
	answer, err := r.roundTrip(ctx, http.MethodPost, r.url(v.Exchange, "register"), body.JSON(), header, 64<<10)
	if e, ok := errors.AsType[*client.SendError](err); ok && e.Refusal != nil {
		switch {
		case e.Status == http.StatusConflict:
			return v, newLinkFault("the name %s is taken at the exchange: set another one in options.as, or give the link its key in token_file", id)
		case e.Retry:
			return v, client.RetryLater(notYet(fmt.Sprintf("the exchange does not register us now (HTTP %d: %s)", e.Status, e.Refusal.Message)))
		}
		return v, newLinkFault("the exchange does not register us (HTTP %d: %s): ask its owner for a key, and give it to the link in token_file", e.Status, e.Refusal.Message)
	}
	if err != nil {
		return v, err
	}
	result, err := wire.ParseObject(answer)
	key := result.GetStr("api_key")
	if err != nil || key == "" || len(key) > 4096 || strings.ContainsAny(key, " \t\r\n") {
		return v, newLinkFault("the exchange registered us and gave no usable key: give the link one in token_file")
	}
	v.ID, v.KeyHash, v.Key = id, "", client.Credential(key)
	return v, r.save(ctx, v, "as "+id+" at the exchange; the key is kept in the database")
}

// onlyExchange returns the exchange that a server names as its only one, or "". Public servers name none, because they
// create every exchange that a client names. The error means that the server does not answer now.
func (r *restRemote) onlyExchange(ctx context.Context) (string, error) {
	answer, err := r.roundTrip(ctx, http.MethodGet, strings.TrimSuffix(r.base, "/")+"/health", nil, http.Header{}, 64<<10)
	if e, ok := errors.AsType[*client.SendError](err); ok && e.Retry {
		return "", err
	}
	v, _ := wire.ParseObject(answer)
	if id := v.GetStr("exchange_id"); err == nil && registry.ValidExchangeID(id) {
		return id, nil
	}
	return "", nil
}

// checkKey decides from the error of a call whether the key of our registration is still valid. If the exchange no
// longer knows the key, checkKey drops it and the link registers again, but not twice in a row: in between, the
// exchange must have accepted a key. A failure of the network or of the server does not count as acceptance. checkKey
// keeps a key whose registration waits for approval, and returns an error that makes the outbox try again.
func (r *restRemote) checkKey(ctx context.Context, path string, err error) error {
	e, isSendErr := errors.AsType[*client.SendError](err)
	r.mu.Lock()
	isRegistered, wasDropped := r.token == "" && r.state != nil && r.state.Key != "", r.keyDropped
	if accepted := err == nil || isSendErr && !e.Retry && e.Status != http.StatusUnauthorized; accepted {
		r.keyDropped = false
	}
	r.mu.Unlock()
	switch {
	case !isSendErr || !isRegistered:
		return err
	case e.Status == http.StatusForbidden && e.Refusal != nil:
		if !strings.HasPrefix(path, "requests?") { // the refusal may be about one thread only: does the list work?
			_, listErr := r.get(ctx, "requests?limit=1")
			if _, waits := errors.AsType[notYet](listErr); waits {
				return listErr
			}
			return err
		}
		return client.RetryLater(notYet(fmt.Sprintf("the exchange does not accept us yet (%s): its owner may have to approve the registration", e.Refusal.Message)))
	case e.Status != http.StatusUnauthorized || wasDropped:
		return err
	}
	r.mu.Lock()
	r.keyDropped = true
	r.mu.Unlock()
	if err := r.updateState(ctx, func(m *restState) { m.Key = "" }); err != nil {
		return err
	}
	return client.RetryLater(notYet("the exchange no longer knows our key: the link registers again"))
}
