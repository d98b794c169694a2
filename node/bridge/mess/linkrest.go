package mess

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// restRemote speaks the REST of MESS section 10 as a client.
type restRemote struct {
	base     string
	exchange string // "" takes it from the key
	token    client.Credential
	http     *client.HTTP

	mu    sync.Mutex
	me    string
	small bool // lists are asked for in small pages: a large one was too large
}

// url returns a route below the exchange. The configured URL may name the exchange already.
func (r *restRemote) url(path string) string {
	base := strings.TrimSuffix(r.base, "/")
	if !strings.Contains(base, "/api/v1/exchanges/") {
		ex := r.exchange
		if parts := strings.SplitN(string(r.token), "_", 3); ex == "" && len(parts) == 3 {
			ex = parts[1]
		}
		base += "/api/v1/exchanges/" + url.PathEscape(ex)
	}
	return base + "/" + path
}

const maxRemoteAnswer = 10 << 20

func (r *restRemote) get(ctx context.Context, path string) (wire.Value, error) {
	return r.call(ctx, "", http.MethodGet, path, wire.Value{})
}

// call makes one call with JSON, under a name where once is one. A refusal is a *client.SendError that says whether to try
// again.
func (r *restRemote) call(ctx context.Context, once, method, path string, body wire.Value) (wire.Value, error) {
	var data []byte
	header := http.Header{"Accept": {"application/json"}}
	if !body.IsNull() {
		data = body.JSON()
		header.Set("Content-Type", "application/json")
	}
	if once != "" {
		header.Set("Idempotency-Key", once)
	}
	answer, err := r.send(ctx, method, path, data, header, maxRemoteAnswer)
	if err != nil {
		return wire.Value{}, err
	}
	v, err := wire.ParseLimits(answer, maxDepth+4, 20*maxNodes)
	if err != nil {
		return v, &client.SendError{Retry: false, Status: http.StatusOK, Processed: true}
	}
	return v, nil
}

// send is call for bytes, with an answer of at most limit.
func (r *restRemote) send(ctx context.Context, method, path string, data []byte, header http.Header, limit int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, r.url(path), bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header = header
	req.Header.Set("Authorization", "Bearer "+string(r.token))
	resp, err := r.http.Do(ctx, client.Owner, req)
	if err != nil {
		return nil, &client.SendError{Retry: true}
	}
	answer, err := client.ReadAll(resp, limit)
	if err != nil {
		return nil, errors.Join(&client.SendError{Retry: true, Status: resp.StatusCode, Processed: true}, err)
	}
	if resp.StatusCode >= 300 {
		again := resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests
		refusal := &wire.Error{Code: wire.InvalidMessage, Status: resp.StatusCode, Retry: again, Message: remoteText(answer)}
		return nil, &client.SendError{Retry: again, Status: resp.StatusCode, Refusal: refusal}
	}
	return answer, nil
}

// attachment is GET requests/{ref}/attachments/{file} there.
func (r *restRemote) attachment(ctx context.Context, ref, file string) ([]byte, error) {
	return r.send(ctx, http.MethodGet, "requests/"+url.PathEscape(ref)+"/attachments/"+url.PathEscape(file), nil, http.Header{}, maxUpload)
}

// remoteText is what the foreign side says is wrong, made fit for a line of log.
func remoteText(answer []byte) string {
	v, err := wire.ParseObject(answer)
	text := v.GetStr("error")
	if err != nil || text == "" {
		return "the exchange refused"
	}
	if len(text) > 200 {
		text = text[:200]
	}
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(text, "?"))
}

// self is the requester of a thread that we made, which the exchange knows us by; until then unknown.
func (r *restRemote) self(context.Context) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.me
}

func (r *restRemote) create(ctx context.Context, once string, body wire.Value) (string, error) {
	v, err := r.call(ctx, once, http.MethodPost, "requests", body)
	if err != nil {
		return "", err
	}
	ref := v.GetStr("ref")
	if !safeRef.MatchString(ref) {
		return "", errors.New("mess: the exchange gave no usable ref")
	}
	if shown, err := r.get(ctx, "requests/"+ref); err == nil {
		t, _ := shown.Get("thread")
		r.mu.Lock()
		r.me = t.GetStr("requestor_id")
		r.mu.Unlock()
	}
	return ref, nil
}

func (r *restRemote) say(ctx context.Context, once, ref string, b Block) error {
	body := wire.Obj(wire.Member{Key: "mess", Value: b.Tree()})
	for _, e := range b {
		if e.Type == "cancel" { // public servers know it as a status
			body = body.With("status", wire.Text(string(Cancelled)))
			if len(b) == 1 {
				body = body.Without("mess").With("message", wire.Text(e.Body.GetStr("reason")))
			}
		}
		if e.Type == "status" {
			c, _ := ParseCode(e.Body.GetStr("code"))
			body = body.With("status", wire.Text(c.rest()))
		}
	}
	_, err := r.call(ctx, once, http.MethodPatch, "requests/"+url.PathEscape(ref), body)
	return err
}

// Pages of a list: one of a thousand threads, or some small ones where that is too large for us. Others' texts are in it.
const (
	smallPage = 100
	maxPages  = 10
)

func (r *restRemote) changed(ctx context.Context) ([]remoteThread, error) {
	r.mu.Lock()
	small := r.small
	r.mu.Unlock()
	if !small {
		list, _, err := r.page(ctx, maxPage, "")
		if !errors.Is(err, client.ErrAnswerTooLarge) {
			return list, err
		}
		r.mu.Lock()
		r.small = true
		r.mu.Unlock()
	}
	var out []remoteThread
	for after := ""; len(out) < maxPages*smallPage; {
		list, next, err := r.page(ctx, smallPage, after)
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
		if next == "" || len(list) == 0 {
			break
		}
		after = next
	}
	return out, nil
}

// page is one page of the list, and where the next one begins.
func (r *restRemote) page(ctx context.Context, limit int, after string) (out []remoteThread, next string, err error) {
	path := "requests?limit=" + itoa(limit)
	if after != "" {
		path += "&after=" + url.QueryEscape(after)
	}
	v, err := r.get(ctx, path)
	if err != nil {
		return nil, "", err
	}
	list, _ := v.Get("threads")
	for t := range list.Elems() {
		if ref := t.GetStr("ref"); safeRef.MatchString(ref) {
			out = append(out, remoteThread{ref, t.GetStr("requestor_id"), t.GetStr("updated_at") + t.GetStr("status")})
		}
	}
	return out, v.GetStr("next"), nil
}

func (r *restRemote) view(ctx context.Context, ref string) (remoteView, error) {
	shown, err := r.get(ctx, "requests/"+url.PathEscape(ref))
	if err != nil {
		return remoteView{}, err
	}
	t, _ := shown.Get("thread")
	v := remoteView{requester: t.GetStr("requestor_id"), holder: t.GetStr("executor_id")}
	if c, ok := ParseCode(t.GetStr("status")); ok {
		v.status = c
	}
	list, _ := t.Get("messages")
	for m := range list.Elems() {
		mess, _ := m.Get("mess")
		at, _ := wire.ParseTime(m.GetStr("ts"))
		v.messages = append(v.messages, Message{Serial: len(v.messages) + 1, From: m.GetStr("from"), At: at, Mess: mess})
	}
	return v, nil
}

func (r *restRemote) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	_, err := r.get(ctx, "requests?limit=1")
	if e, ok := errors.AsType[*client.SendError](err); ok && e.Refusal != nil {
		return fmt.Errorf("the exchange answers HTTP %d: %s", e.Status, e.Refusal.Message)
	}
	if err != nil {
		return errors.New("the exchange cannot be reached")
	}
	return nil
}
