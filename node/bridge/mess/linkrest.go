package mess

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// restRemote is a REST client for MESS section 10.
type restRemote struct {
	base     string
	exchange string            // the id of the exchange; "" means the id in the key, or the server's only exchange
	as       string            // our name for the registration; "" means a random name
	token    client.Credential // the configured key; "" means that we register
	http     *client.HTTP
	cfg      *LinkConfig

	mu         sync.Mutex // held also during a registration
	state      *restState // nil until it is loaded
	keyDropped bool       // the exchange refused the key of our registration, so we dropped it, and it has accepted no key since
}

// url returns the URL of a path below the exchange. The configured base URL may contain the exchange already.
func (r *restRemote) url(exchange, path string) string {
	base := strings.TrimSuffix(r.base, "/")
	if !strings.Contains(base, exchangesPath) {
		base += exchangesPath + url.PathEscape(exchange)
	}
	return base + "/" + path
}

const exchangesPath = "/api/v1/exchanges/"

const maxRemoteAnswer = 10 << 20

func (r *restRemote) get(ctx context.Context, path string) (wire.Value, error) {
	return r.call(ctx, "", http.MethodGet, path, wire.Value{})
}

// call makes one JSON call, with an Idempotency-Key unless key is "". A refusal is a *client.SendError.
func (r *restRemote) call(ctx context.Context, key, method, path string, body wire.Value) (wire.Value, error) {
	var data []byte
	header := http.Header{"Accept": {"application/json"}}
	if !body.IsNull() {
		data = body.JSON()
		header.Set("Content-Type", "application/json")
	}
	if key != "" {
		header.Set("Idempotency-Key", key)
	}
	answer, err := r.send(ctx, method, path, data, header, maxRemoteAnswer)
	if err != nil {
		return wire.Value{}, err
	}
	// an answer contains many blocks, which are nested in up to four levels of maps and lists
	v, err := wire.ParseLimits(answer, thread.Limits.Depth+4, 20*thread.Limits.Nodes)
	if err != nil {
		return v, &client.SendError{Processed: true, Status: http.StatusOK, Cause: err}
	}
	return v, nil
}

// send is call for raw bytes: it sends data as it is, and accepts an answer of at most limit bytes. It registers first
// if we have no key.
func (r *restRemote) send(ctx context.Context, method, path string, data []byte, header http.Header, limit int) ([]byte, error) {
	state, err := r.join(ctx)
	if err != nil {
		return nil, err
	}
	header.Set("Authorization", "Bearer "+string(state.Key))
	answer, err := r.roundTrip(ctx, method, r.url(state.Exchange, path), data, header, limit)
	return answer, r.checkKey(ctx, path, err)
}

// roundTrip makes one HTTP call with the given header. It adds no key.
func (r *restRemote) roundTrip(ctx context.Context, method, at string, data []byte, header http.Header, limit int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, at, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header = header
	resp, err := r.http.Do(ctx, client.Owner, req)
	if err != nil {
		return nil, client.RetryLater(err)
	}
	answer, err := client.ReadAll(resp, limit)
	if err != nil {
		return nil, &client.SendError{Retry: true, Processed: true, Status: resp.StatusCode, Cause: err}
	}
	if resp.StatusCode >= 300 {
		again := client.IsRetryStatus(resp.StatusCode)
		refusal := &wire.Error{Code: wire.InvalidMessage, Status: resp.StatusCode, Retry: again, Message: remoteText(answer)}
		return nil, &client.SendError{Retry: again, Status: resp.StatusCode, Refusal: refusal}
	}
	return answer, nil
}

// attachment calls GET requests/{ref}/attachments/{file} of the exchange.
func (r *restRemote) attachment(ctx context.Context, ref, file string) ([]byte, error) {
	return r.send(ctx, http.MethodGet, "requests/"+url.PathEscape(ref)+"/attachments/"+url.PathEscape(file), nil, http.Header{}, thread.MaxUpload)
}

// remoteText returns the error text in an answer of the exchange, cleaned for a log line.
func remoteText(answer []byte) string {
	v, _ := wire.ParseObject(answer)
	return cmp.Or(wire.OneLine(v.GetStr("error"), 190), "the exchange refused")
}

// self returns our name at the exchange. Without options.as it is "" until we have registered or opened a thread.
func (r *restRemote) self(context.Context) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == nil || r.state.KeyHash != r.keyHash() { // the stored name belongs to another key
		return r.as
	}
	return cmp.Or(r.state.ID, r.as)
}

// keyHash returns the hash of the configured key, or "" if we register.
func (r *restRemote) keyHash() string {
	if r.token == "" {
		return ""
	}
	return wire.HashOf(string(r.token))
}

func (r *restRemote) setSelf(ctx context.Context, self string) error {
	if self == "" || self == r.self(ctx) {
		return nil
	}
	return r.updateState(ctx, func(m *restState) { m.ID, m.KeyHash = self, r.keyHash() })
}

func (r *restRemote) resume(context.Context, string) error { return nil }

func (r *restRemote) create(ctx context.Context, key string, body wire.Value) (string, error) {
	v, err := r.call(ctx, key, http.MethodPost, "requests", body)
	if err != nil {
		return "", err
	}
	ref := v.GetStr("ref")
	if !thread.IsSafeRef(ref) {
		return "", errors.New("mess: the exchange gave no usable ref")
	}
	if shown, err := r.get(ctx, "requests/"+ref); err == nil { // the thread shows our name at the exchange
		t, _ := shown.Get("thread")
		return ref, r.setSelf(ctx, t.GetStr("requestor_id"))
	}
	return ref, nil
}

// post adds a block to a thread with a PATCH of requests/{ref}. If the block contains a status or a cancel, the PATCH
// also sets the status of the thread. The PATCH omits a block that says nothing more than that status.
func (r *restRemote) post(ctx context.Context, key, ref string, b thread.Block) error {
	body, code := wire.Obj(wire.Field("mess", b.Tree())), thread.Code("")
	for _, e := range b {
		if e.Type == "cancel" { // for public servers, a cancel is a status
			code = thread.Cancelled
			if len(b) == 1 {
				body = wire.Obj(wire.TextField("message", e.Body.GetStr("reason")))
			}
		}
		if e.Type == "status" {
			code, _ = thread.ParseCode(e.Body.GetStr("code"))
			if len(b) == 1 && e.IsBareStatus() {
				body = wire.Obj()
			}
		}
	}
	if code == "" {
		_, err := r.call(ctx, key, http.MethodPatch, "requests/"+url.PathEscape(ref), body)
		return err
	}
	return r.patch(ctx, key, ref, code, body, b)
}

// legacyCodes maps codes of the specification to those of servers that know fewer states or write the codes with a
// hyphen.
var legacyCodes = map[thread.Code]string{
	thread.InProgress: "in-progress", thread.NeedsInput: "needs-input", thread.NeedsConfirmation: "needs-input", thread.Declined: "rejected", thread.Failed: "rejected",
}

// patch sets the state of a thread. If the server does not know the code, patch tries the legacy code, and the link
// remembers this for later calls. If the server knows neither, patch sends the block as a message, and the thread keeps
// its state at the exchange.
func (r *restRemote) patch(ctx context.Context, key, ref string, code thread.Code, body wire.Value, b thread.Block) error {
	state, err := r.join(ctx)
	if err != nil {
		return err
	}
	words := []string{code.RESTName()}
	if legacy := legacyCodes[code]; legacy != "" {
		words = append(words, legacy)
		if state.LegacyCodes {
			words = []string{legacy}
		}
	}
	for i, word := range words {
		_, err = r.call(ctx, key, http.MethodPatch, "requests/"+url.PathEscape(ref), body.With("status", wire.Text(word)))
		if !isUnknownStatus(err) {
			if err == nil && i > 0 {
				err = r.updateState(ctx, func(m *restState) { m.LegacyCodes = true })
			}
			return err
		}
	}
	_, err = r.call(ctx, key, http.MethodPatch, "requests/"+url.PathEscape(ref), wire.Obj(wire.Field("mess", b.Tree())))
	return err
}

// isUnknownStatus reports whether a server refused a PATCH, and changed nothing, because it does not know the code.
func isUnknownStatus(err error) bool {
	e, ok := errors.AsType[*client.SendError](err)
	return ok && e.Status == http.StatusBadRequest && e.Refusal != nil && strings.Contains(strings.ToLower(e.Refusal.Message), "invalid status")
}

// smallPage is the number of threads on a page of a list. Each has an intent of at most 16 KiB, twice that in JSON, so
// that others cannot make a page too large to read.
const (
	smallPage = 100
	maxPages  = 10
)

func (r *restRemote) list(ctx context.Context) (out []remoteThread, err error) {
	after := ""
	for range maxPages {
		v, err := r.get(ctx, "requests?limit="+strconv.Itoa(smallPage)+after)
		if err != nil {
			return nil, err
		}
		list, _ := v.Get("threads")
		for t := range list.Elems() {
			if ref := t.GetStr("ref"); thread.IsSafeRef(ref) {
				// the time alone may hide a change within a second
				out = append(out, remoteThread{ref, t.GetStr("requestor_id"), t.GetStr("updated_at") + t.GetStr("status")})
			}
		}
		next := v.GetStr("next")
		if next == "" || list.Len() == 0 {
			break
		}
		after = "&after=" + url.QueryEscape(next)
	}
	return out, nil
}

func (r *restRemote) view(ctx context.Context, ref string) (remoteView, error) {
	shown, err := r.get(ctx, "requests/"+url.PathEscape(ref))
	if err != nil {
		return remoteView{}, err
	}
	t, _ := shown.Get("thread")
	v := remoteView{requester: t.GetStr("requestor_id"), holder: t.GetStr("executor_id")}
	if c, ok := thread.ParseCode(t.GetStr("status")); ok {
		v.status = c
	}
	list, _ := t.Get("messages")
	for m := range list.Elems() {
		mess, _ := m.Get("mess")
		at, _ := wire.ParseTime(m.GetStr("ts"))
		v.messages = append(v.messages, thread.Message{Serial: len(v.messages) + 1, From: m.GetStr("from"), At: at, Mess: mess})
	}
	return v, nil
}

func (r *restRemote) pause() time.Duration { return folder.PollEvery }

func (r *restRemote) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if _, err := r.get(ctx, "requests?limit=1"); err != nil {
		return explainLinkError(err)
	}
	return nil
}
