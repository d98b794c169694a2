package mess

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
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

// A message may name files and pages by address. The bridge does not fetch them when the message arrives. The owner may
// fetch them one at a time (MESS-63).

// reference is an address in a message that refers to something outside the thread.
type reference struct {
	serial          int
	kind, uri, name string
	digest          string // "" if the message has none
}

// file returns the name under which the fetched content is stored, and the prefix of that name. The prefix depends only
// on the reference, so that the content of an earlier fetch is found.
func (r reference) file(name, mime string) (file, prefix string) {
	sum := sha256.Sum256([]byte(r.uri))
	label := hex.EncodeToString(sum[:6]) + "-"
	file = thread.AttachmentFile(r.serial, r.kind, label+name[max(0, len(name)-60):], mime)
	prefix, _, _ = strings.Cut(file, label)
	return file, prefix + label
}

// listReferences returns the addresses in a message that can be fetched.
func listReferences(m thread.Message) []reference {
	var out []reference
	_, _ = m.Block().MapContent(func(kind string, v wire.Value) (wire.Value, error) { // the function never fails
		r := reference{m.Serial, kind, thread.ResourceURI(kind, v), v.GetStr("name"), v.GetStr("sha256")}
		u, err := url.Parse(r.uri)
		if _, file, ok := thread.SplitResource(v.GetStr("resource")); ok && v.GetStr(thread.NotFetched) != "" {
			out = append(out, reference{serial: m.Serial, kind: kind, uri: v.GetStr("resource"), name: thread.AttachmentTail(file)})
		} else if err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http" && rest.IsShared(u)) { // by http, only a shared file
			out = append(out, r)
		}
		return v, nil
	})
	return out
}

const fetchTimeout = time.Minute

// Fetch fetches an address in a message of the thread, and stores the content. The caller checks that the owner asked.
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
				return b.fetchReference(ctx, t, r)
			}
		}
	}
	return exchange.Attachment{}, thread.Missing("the thread does not name this address")
}

// fetchReference returns the content of a reference. It fetches and stores the content unless an earlier call did.
func (b *Bridge) fetchReference(ctx context.Context, t *thread.Thread, r reference) (exchange.Attachment, error) {
	ref := t.Ref
	if have, err := storedReference(ctx, b.x, ref, r); err != nil || have.Name != "" {
		return have, err
	}
	data, err := b.readReference(ctx, t, r)
	if err != nil {
		b.log.Info("a reference of a thread could not be fetched", "thread", ref, "error", err)
		return exchange.Attachment{}, &wire.Error{Code: wire.AgentUnavailable, Status: http.StatusBadGateway, Message: "the address could not be fetched: " + explainFetchError(err)}
	}
	if sum := sha256.Sum256(data); r.digest != "" && !strings.EqualFold(r.digest, hex.EncodeToString(sum[:])) {
		return exchange.Attachment{}, &wire.Error{Code: wire.InvalidMessage, Status: http.StatusBadGateway, Message: "the received file does not have the digest that the message names"}
	}
	_, mime := thread.Sniff(data)
	file, _ := r.file(r.name, mime)
	a := exchange.Attachment{Name: file, Mime: mime, Size: len(data), Data: data}
	// a conflict means that another fetch has stored the file meanwhile
	if err := b.x.KeepAttachment(ctx, ref, a); err != nil && !errors.Is(err, store.ErrConflict) {
		return a, err
	}
	return a, nil
}

// readReference reads the content of a reference: by https, or from a foreign thread through its link.
func (b *Bridge) readReference(ctx context.Context, t *thread.Thread, r reference) ([]byte, error) {
	foreignRef, file, ok := thread.SplitResource(r.uri)
	if !ok {
		return b.download(ctx, r.uri)
	}
	l, err := b.linkBehind(ctx, t, foreignRef)
	if err != nil {
		return nil, err
	}
	if l == nil {
		return nil, thread.Missing("is not beside a thread of a link")
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	return l.remote.attachment(ctx, foreignRef, file)
}

// storedReference returns the content of an earlier fetch, or the zero value.
func storedReference(ctx context.Context, x *exchange.Exchange, ref string, r reference) (exchange.Attachment, error) {
	names, err := x.Attachments(ctx, ref)
	if err != nil {
		return exchange.Attachment{}, err
	}
	_, prefix := r.file("", "")
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			return x.Attachment(ctx, exchange.Owner("fetch"), ref, name)
		}
	}
	return exchange.Attachment{}, nil
}

// download fetches a URI through the guarded client, by https from a public address. In the local profile, it may also
// fetch a file that another exchange on this machine shares.
func (b *Bridge) download(ctx context.Context, uri string) ([]byte, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return nil, err
	}
	reach := client.StrangersReach(b.cfg.Local && rest.IsShared(u) && client.IsLoopbackURL(u))
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, uri, nil)
	if err != nil {
		return nil, err
	}
	resp, err := b.cfg.HTTP.Do(ctx, reach, req)
	if err != nil {
		return nil, client.RetryLater(err)
	}
	data, err := client.ReadAll(resp, thread.MaxUpload)
	if err != nil || resp.StatusCode != http.StatusOK || len(data) == 0 {
		return nil, &client.SendError{Status: resp.StatusCode, Cause: err}
	}
	return data, nil
}

// FetchCall is the owner's request to fetch an address in a message.
type FetchCall struct {
	URI string `json:"uri"`
}

// Fetched is the answer to a [FetchCall]: the stored file.
type Fetched struct {
	File string `json:"file"`
	Mime string `json:"mime"`
	Size int    `json:"size"`
}

func (b *Bridge) ownerFetch(c echo.Context, call FetchCall) (Fetched, error) {
	if call.URI == "" {
		return Fetched{}, wire.ErrSchema.At("uri must be an address that the thread names")
	}
	if err := httpapi.KeepOpen(c, 2*fetchTimeout); err != nil {
		return Fetched{}, err
	}
	ctx := c.Request().Context()
	ref := c.Param("ref")
	if found, ok := b.x.Resolve(ctx, exchange.Owner("cli"), ref); ok {
		ref = found
	}
	a, err := b.Fetch(ctx, ref, call.URI)
	return Fetched{File: a.Name, Mime: a.Mime, Size: len(a.Data)}, err
}
