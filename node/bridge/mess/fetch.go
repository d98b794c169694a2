package mess

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/rest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Nothing that a message refers to is fetched when it comes. The owner may ask for one thing at a time (MESS-63).

// reference is something that a message of a thread refers to.
type reference struct {
	serial          int
	kind, uri, name string
	digest          string // "" where the message does not say
}

// file is the name under which what was fetched is kept. What it begins with is its address alone; data that came inline
// has a number there.
func (r reference) file(name, mime string) (file, begins string) {
	sum := sha256.Sum256([]byte(r.uri))
	label := hex.EncodeToString(sum[:6]) + "-"
	return thread.AttachmentFile(r.serial, r.kind, label+name[max(0, len(name)-60):], mime), fmt.Sprintf("att-%03d-%s-%s", r.serial, r.kind, label)
}

// listReferences lists what a message refers to by an address that can be fetched.
func listReferences(m thread.Message) []reference {
	var out []reference
	b, err := thread.FromTree(m.Mess)
	if err != nil {
		return nil
	}
	for _, e := range b {
		for _, key := range []string{"context", "content"} {
			list, _ := e.Body.Get(key)
			for c := range list.Elems() {
				if c.Len() != 1 {
					continue
				}
				if r, ok := referenceOf(c.Members()[0].Key, c.At(0)); ok {
					r.serial = m.Serial
					out = append(out, r)
				}
			}
		}
	}
	return out
}

func referenceOf(kind string, v wire.Value) (reference, bool) {
	if _, file, ok := thread.SplitResource(v.GetStr("resource")); ok && v.GetStr(thread.NotFetched) != "" {
		return reference{kind: kind, uri: v.GetStr("resource"), name: thread.AttachmentTail(file)}, true
	}
	r := reference{kind: kind, uri: thread.ResourceURI(kind, v), name: v.GetStr("name"), digest: v.GetStr("sha256")}
	u, err := url.Parse(r.uri)
	return r, err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http" && rest.IsShared(u))
}

// fetchTimeout bounds one fetch.
const fetchTimeout = time.Minute

// Fetch brings in what a message of a thread refers to under uri and keeps it with the thread. It is the owner's.
func (b *Bridge) Fetch(ctx context.Context, ref, uri string) (exchange.Attachment, error) {
	t, err := b.x.Thread(ctx, exchange.Owner("fetch"), ref)
	if err != nil {
		return exchange.Attachment{}, err
	}
	messages, err := b.x.Messages(ctx, t.Ref)
	if err != nil {
		return exchange.Attachment{}, err
	}
	for _, m := range messages {
		for _, r := range listReferences(m) {
			if r.uri == uri {
				return b.bring(ctx, t, r)
			}
		}
	}
	return exchange.Attachment{}, thread.Missing("the thread refers to no such https address")
}

func (b *Bridge) bring(ctx context.Context, t *thread.Thread, r reference) (exchange.Attachment, error) {
	ref := t.Ref
	if have, err := fetched(ctx, b.x, ref, r); err != nil || have.Name != "" {
		return have, err
	}
	data, err := b.dataOf(ctx, t, r)
	if err != nil {
		b.log.Info("a reference of a thread could not be fetched", "thread", ref, "error", err)
		return exchange.Attachment{}, &wire.Error{Code: wire.AgentUnavailable, Status: http.StatusBadGateway, Message: "the address could not be fetched: " + publicFetchError(err)}
	}
	if sum := sha256.Sum256(data); r.digest != "" && !strings.EqualFold(r.digest, hex.EncodeToString(sum[:])) {
		return exchange.Attachment{}, &wire.Error{Code: wire.InvalidMessage, Status: http.StatusBadGateway, Message: "what came is not what the message names: its digest differs"}
	}
	_, mime := thread.Sniff(data)
	file, _ := r.file(r.name, mime)
	a := exchange.Attachment{Name: file, Mime: mime, Size: len(data), Data: data}
	if err := b.x.KeepAttachment(ctx, ref, a); err != nil && !errors.Is(err, store.ErrConflict) { // it was fetched twice at once
		return a, err
	}
	return a, nil
}

// dataOf gets what a reference names: by https, or with the thread behind a link that ours is about.
func (b *Bridge) dataOf(ctx context.Context, t *thread.Thread, r reference) ([]byte, error) {
	there, file, ok := thread.SplitResource(r.uri)
	if !ok {
		return b.get(ctx, r.uri)
	}
	l, err := b.behind(ctx, t, there)
	if err != nil {
		return nil, err
	}
	if l == nil {
		return nil, lostError("it lies with no thread that a link knows")
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	data, err := l.Attachment(ctx, there, file)
	if err != nil {
		return nil, lostError(whyLost(err))
	}
	return data, nil
}

// lostError says why a file behind a link could not be had.
type lostError string

func (e lostError) Error() string { return string(e) }

// fetched returns what was brought in before; its zero value where that is nothing.
func fetched(ctx context.Context, x *exchange.Exchange, ref string, r reference) (exchange.Attachment, error) {
	names, err := x.Attachments(ctx, ref)
	if err != nil {
		return exchange.Attachment{}, err
	}
	_, begins := r.file("", "")
	for _, name := range names {
		if strings.HasPrefix(name, begins) {
			return x.Attachment(ctx, exchange.Owner("fetch"), ref, name)
		}
	}
	return exchange.Attachment{}, nil
}

// get makes the call, through the guarded client: https to public addresses. A file that another exchange shares may also
// lie on this machine in the local profile, where the exchanges of a household do.
func (b *Bridge) get(ctx context.Context, uri string) ([]byte, error) {
	if b.cfg.HTTP == nil {
		return nil, errors.New("there is no client")
	}
	u, err := url.Parse(uri)
	if err != nil {
		return nil, err
	}
	reach := client.Public
	if addr, err := netip.ParseAddr(u.Hostname()); b.cfg.Local && rest.IsShared(u) && (u.Hostname() == "localhost" || err == nil && addr.IsLoopback()) {
		reach = client.Loopback
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, uri, nil)
	if err != nil {
		return nil, err
	}
	resp, err := b.cfg.HTTP.Do(ctx, reach, req)
	if err != nil {
		return nil, err
	}
	data, err := client.ReadAll(resp, thread.MaxUpload)
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode != http.StatusOK:
		return nil, statusError(resp.StatusCode)
	case len(data) == 0:
		return nil, errors.New("the answer is empty")
	}
	return data, nil
}

// statusError is an answer other than 200.
type statusError int

func (e statusError) Error() string { return "the server answered " + http.StatusText(int(e)) }

// publicFetchError says why without the network's own words.
func publicFetchError(err error) string {
	if e, ok := errors.AsType[statusError](err); ok {
		return e.Error()
	}
	if e, ok := errors.AsType[lostError](err); ok {
		return e.Error()
	}
	if e, ok := errors.AsType[*client.GuardError](err); ok {
		return e.Error()
	}
	if errors.Is(err, client.ErrAnswerTooLarge) {
		return "it is larger than 10 MiB"
	}
	return "the server does not answer as it should"
}

// FetchCall asks for something that a thread refers to.
type FetchCall struct {
	URI string `json:"uri"`
}

// Fetched says under which name it is kept.
type Fetched struct {
	File string `json:"file"`
	Mime string `json:"mime"`
	Size int    `json:"size"`
}

// ownerFetch fetches what a thread refers to.
func (b *Bridge) ownerFetch(c echo.Context) error {
	body, err := httpapi.Body(c, 64<<10)
	if err != nil {
		return err
	}
	var call FetchCall
	if err := json.Unmarshal(body, &call); err != nil || call.URI == "" {
		return wire.ErrSchema.At("uri must be an address that the thread names")
	}
	if err := httpapi.KeepOpen(c, 2*fetchTimeout); err != nil {
		return err
	}
	ctx := c.Request().Context()
	ref := c.Param("ref")
	if found, ok := b.x.Resolve(ctx, exchange.Owner("cli"), ref); ok {
		ref = found
	}
	a, err := b.Fetch(ctx, ref, call.URI)
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, Fetched{File: a.Name, Mime: a.Mime, Size: len(a.Data)})
}
