package mess

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// A large attachment does not fit into a message of the mesh. It travels as an address on our exchange that nobody can
// guess, with its size and digest (MESS section 12), and is fetched there only if the other side's owner wants it.

const shareKey = "share/key"

// sharing makes the addresses of shared files.
type sharing struct{ records store.Records }

// secret returns the key of all addresses. It makes the key once.
func (s sharing) secret(ctx context.Context) ([]byte, error) {
	for range maxConflicts {
		rec, err := s.records.Get(ctx, nsMeta, shareKey, time.Now())
		if err == nil {
			return rec.Body, nil
		}
		if !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		key := make([]byte, 32)
		rand.Read(key) // never fails: crypto/rand
		err = s.records.Apply(ctx, []store.Change{{Record: store.Record{NS: nsMeta, Key: shareKey, Body: key}}}, time.Now())
		if err != nil && !isConflict(err) {
			return nil, err
		}
	}
	return nil, store.ErrConflict
}

// token returns what the address of a file must carry.
func (s sharing) token(ctx context.Context, ref, file string) (string, error) {
	key, err := s.secret(ctx)
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(ref + "/" + file)) // neither may hold a slash
	return hex.EncodeToString(mac.Sum(nil)), nil
}

// maxCarried is how much inline data of attachments a message of the mesh carries in all: what is left of 256 KiB is for
// words.
const maxCarried = 2 * thread.MaxInline

// shared returns a block whose attachments are within it where they are small, else addresses of ours. Without a listener
// that others reach a large one stays behind, and its name travels. For a folder behind a link all are addresses, which the
// link makes files of.
func (b *Bridge) shared(ctx context.Context, ref string, block thread.Block, to string) (thread.Block, error) {
	room := maxCarried
	l := b.linkOf(to)
	return block.MapContent(func(_ string, v wire.Value) (wire.Value, error) {
		if v.GetStr("file") == "" {
			return v, nil
		}
		return b.travelling(ctx, ref, v, &room, l != nil && l.cfg.Dir != "")
	})
}

// travelling is the form in which an attachment travels: {uri, name, mime} with its data, as long as there is room, or
// {uri, name, mime, size, sha256} with its address.
func (b *Bridge) travelling(ctx context.Context, ref string, stored wire.Value, room *int, toFolder bool) (wire.Value, error) {
	file := stored.GetStr("file")
	a, err := b.x.Attachment(ctx, Owner("mesh"), ref, file)
	if refused, ok := errors.AsType[*wire.Error](err); ok && !refused.Retry {
		return stored, nil // named and never there
	}
	if err != nil {
		return stored, err
	}
	form := func(uri string) wire.Value {
		return wire.Obj(
			wire.TextField("uri", uri), wire.TextField("name", cmp.Or(stored.GetStr("name"), file)),
			wire.TextField("mime", a.Mime))
	}
	if toFolder {
		token, err := sharing{b.x.records}.token(ctx, ref, file)
		return form(enclosure(ref, file, token)), err
	}
	head := "data:" + a.Mime + ";base64,"
	if size := len(head) + base64.StdEncoding.EncodedLen(len(a.Data)); size <= min(thread.MaxInline, *room) {
		*room -= size
		return form(head + base64.StdEncoding.EncodeToString(a.Data)), nil
	}
	if b.cfg.URL == "" || !b.cfg.Serve {
		return stored, nil
	}
	token, err := sharing{b.x.records}.token(ctx, ref, file)
	if err != nil {
		return stored, err
	}
	sum := sha256.Sum256(a.Data)
	at := b.cfg.URL + "/api/v1/exchanges/" + b.x.id + "/shared/" + url.PathEscape(ref) + "/attachments/" + url.PathEscape(file) + "?token=" + token
	return form(at).With("size", wire.Int(int64(len(a.Data)))).With("sha256", wire.Text(hex.EncodeToString(sum[:]))), nil
}

const sharedRoute = "GET shared/{}/attachments/{}"

// sharedFile is GET shared/{ref}/attachments/{file}?token=…, which needs no key. A wrong token counts like a wrong key.
func (r *call) sharedFile() error {
	ctx := r.c.Request().Context()
	ref, file := r.path[1], r.path[3]
	if !thread.SafeRef.MatchString(ref) || !thread.AttachmentName.MatchString(file) {
		return thread.Missing("no such attachment")
	}
	token, err := sharing{r.x.records}.token(ctx, ref, file)
	if err != nil {
		return err
	}
	if !hmac.Equal([]byte(token), []byte(r.c.QueryParam("token"))) {
		return errNoKey
	}
	r.who = Owner("shared")
	r.path[0] = "requests"
	return r.attachment()
}

// isShared says whether an address is that of a file which another exchange shares.
func isShared(u *url.URL) bool {
	parts := strings.Split(strings.TrimPrefix(u.EscapedPath(), "/api/v1/exchanges/"), "/")
	return strings.HasPrefix(u.EscapedPath(), "/api/v1/exchanges/") && len(parts) == 5 && routeOf(http.MethodGet, parts[1:]) == sharedRoute
}
