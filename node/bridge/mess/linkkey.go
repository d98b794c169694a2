package mess

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// A link without a key registers at its exchange, and keeps the key that it gets in the database.

// remembered is what a link over REST keeps.
type remembered struct {
	ID         string            `json:"id,omitempty"` // under which the exchange knows us
	Of         string            `json:"of,omitempty"` // the owner's key that the id belongs to, as a hash; "" for Key
	Exchange   string            `json:"exchange,omitempty"`
	Key        client.Credential `json:"key,omitempty"`
	OtherWords bool              `json:"other_words,omitempty"` // the server knows [otherWords]
}

// linkMemory is where that is kept.
type linkMemory struct{ cfg *LinkConfig }

func (m linkMemory) key() string { return "link/" + m.cfg.Name + "/rest" }

func (m linkMemory) load(ctx context.Context) (out remembered, err error) {
	rec, err := m.cfg.Records.Get(ctx, exchange.NSMeta, m.key(), time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return out, nil
	}
	if err == nil {
		err = json.Unmarshal(rec.Body, &out)
	}
	return out, err
}

// save keeps it, with a notice to the owner if there is one.
func (m linkMemory) save(ctx context.Context, v remembered, notice string) error {
	changes := []store.Change{{Record: store.Record{NS: exchange.NSMeta, Key: m.key(), Body: thread.Encode(v)}, IfRev: store.Any}}
	if notice != "" {
		m.cfg.Logger.Info(notice, "link", m.cfg.Name)
		return m.cfg.note(ctx, "the link "+m.cfg.Name+" registered", notice, changes)
	}
	return m.cfg.Records.Apply(ctx, changes, time.Now())
}

// joinError says why the exchange does not take us in.
type joinError struct {
	text  string
	final bool // until the owner acts
}

func (e *joinError) Error() string { return e.text }

// notJoined is a failure of [restRemote.join], which a message waits for in the outbox.
func notJoined(final bool, format string, args ...any) error {
	return errors.Join(&client.SendError{Retry: true}, &joinError{fmt.Sprintf(format, args...), final})
}

// join returns what is needed to speak with the exchange: the owner's key, the one that we got when we registered, or a new
// one. It is durable before it is used.
func (r *restRemote) join(ctx context.Context) (remembered, error) {
	r.joining.Lock()
	defer r.joining.Unlock()
	r.mu.Lock()
	kept := r.kept
	r.mu.Unlock()
	if kept == nil {
		read, err := r.memory.load(ctx)
		if err != nil {
			return remembered{}, errors.Join(&client.SendError{Retry: true}, err)
		}
		kept = &read
		r.hold(read)
	}
	out := *kept
	out.Key = cmp.Or(r.token, out.Key)
	out.Exchange = cmp.Or(r.exchange, exchangeOf(out.Key), out.Exchange)
	if out.Key != "" {
		return out, nil
	}
	return r.register(ctx, out)
}

func (r *restRemote) hold(v remembered) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = &v
}

// remember changes what is kept.
func (r *restRemote) remember(ctx context.Context, change func(*remembered)) error {
	r.joining.Lock()
	defer r.joining.Unlock()
	r.mu.Lock()
	v := *r.kept
	r.mu.Unlock()
	change(&v)
	if err := r.memory.save(ctx, v, ""); err != nil {
		return errors.Join(&client.SendError{Retry: true}, err)
	}
	r.hold(v)
	return nil
}

// exchangeOf returns the id of an exchange that stands in a key of it (MESS-53).
func exchangeOf(key client.Credential) string {
	if parts := strings.SplitN(string(key), "_", 3); len(parts) == 3 {
		return parts[1]
	}
	return ""
}

// register is POST register there. r.joining is held.
func (r *restRemote) register(ctx context.Context, v remembered) (remembered, error) {
	if !strings.Contains(r.base, exchangesPath) {
		if v.Exchange == "" {
			v.Exchange = r.onlyExchange(ctx)
		}
		if v.Exchange == "" {
			return v, notJoined(true, "the server does not say which exchange is meant: name it in links[].exchange, or give the link a key in token_file")
		}
	}
	id := cmp.Or(r.as, v.ID, "agentmesh-"+strings.ToLower(rand.Text()[:8]))
	body := wire.Obj(wire.TextField("executor_id", id), wire.TextField("display_name", id))
	header := http.Header{"Accept": {"application/json"}, "Content-Type": {"application/json"}}
	answer, err := r.plain(ctx, http.MethodPost, r.url(v.Exchange, "register"), body.JSON(), header, 64<<10)
	if e, ok := errors.AsType[*client.SendError](err); ok && e.Refusal != nil {
		switch {
		case e.Status == http.StatusConflict:
			return v, notJoined(true, "the name %s is taken at the exchange: set another one in options.as, or give the link its key in token_file", id)
		case e.Retry:
			return v, notJoined(false, "the exchange does not register us now (HTTP %d: %s)", e.Status, e.Refusal.Message)
		}
		return v, notJoined(true, "the exchange does not register us (HTTP %d: %s): ask its owner for a key, and give it to the link in token_file", e.Status, e.Refusal.Message)
	}
	if err != nil {
		return v, err
	}
	got, err := wire.ParseObject(answer)
	key := got.GetStr("api_key")
	if err != nil || key == "" || len(key) > 4096 || strings.ContainsAny(key, " \t\r\n") {
		return v, notJoined(true, "the exchange registered us and gave no usable key: give the link one in token_file")
	}
	v.ID, v.Of, v.Key = id, "", client.Credential(key)
	if err := r.memory.save(ctx, v, "as "+id+" at the exchange; the key is kept in the database"); err != nil {
		return v, errors.Join(&client.SendError{Retry: true}, err)
	}
	r.hold(v)
	return v, nil
}

// onlyExchange returns the exchange that a server says it has, "" if it does not say: public servers make any.
func (r *restRemote) onlyExchange(ctx context.Context) string {
	answer, err := r.plain(ctx, http.MethodGet, strings.TrimSuffix(r.base, "/")+"/health", nil, http.Header{}, 64<<10)
	if err != nil {
		return ""
	}
	v, _ := wire.ParseObject(answer)
	if id := v.GetStr("exchange_id"); exchange.ValidExchangeID(id) {
		return id
	}
	return ""
}

// judge reads an answer for what it says about a key that we registered: one that the exchange does not know any more is
// dropped, once, and we register again; one that it has not approved yet is waited for.
func (r *restRemote) judge(ctx context.Context, path string, err error) error {
	e, refused := errors.AsType[*client.SendError](err)
	r.mu.Lock()
	own, forgot := r.token == "" && r.kept != nil && r.kept.Key != "", r.forgot
	r.forgot = r.forgot && (err != nil && !refused || refused && e.Status == http.StatusUnauthorized)
	r.mu.Unlock()
	switch {
	case !refused || !own:
		return err
	case e.Status == http.StatusForbidden && e.Refusal != nil && strings.HasPrefix(path, "requests?"): // all of it, not one thread
		return notJoined(false, "the exchange does not let us in yet (%s): its owner may have to approve the registration", e.Refusal.Message)
	case e.Status != http.StatusUnauthorized || forgot:
		return err
	}
	r.mu.Lock()
	r.forgot = true
	r.mu.Unlock()
	if err := r.remember(ctx, func(m *remembered) { m.Key = "" }); err != nil {
		return err
	}
	return notJoined(false, "the exchange does not know our key any more: we register again")
}
