package mess

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// A large attachment does not fit into a message of the mesh. It travels as an address on our exchange that nobody can
// guess, with its size and digest (MESS section 12), and is fetched there only if the other side's owner wants it.

const shareKey = "share/key"

// shareSecret returns the key behind the addresses; it is made once.
func (x *Exchange) shareSecret(ctx context.Context) ([]byte, error) {
	for range maxConflicts {
		rec, err := x.records.Get(ctx, nsMeta, shareKey, time.Now())
		if err == nil {
			return rec.Body, nil
		}
		if !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		key := make([]byte, 32)
		rand.Read(key) // never fails: crypto/rand
		err = x.records.Apply(ctx, []store.Change{{Record: store.Record{NS: nsMeta, Key: shareKey, Body: key}}}, time.Now())
		if err != nil && !isConflict(err) {
			return nil, err
		}
	}
	return nil, store.ErrConflict
}

// shareToken is what the address of a file must carry.
func (x *Exchange) shareToken(ctx context.Context, ref, file string) (string, error) {
	key, err := x.shareSecret(ctx)
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(ref + "/" + file)) // neither may hold a slash
	return hex.EncodeToString(mac.Sum(nil)), nil
}

// shared returns a block whose attachments are addresses of ours. Without a listener that others reach it stays as it is.
func (b *Bridge) shared(ctx context.Context, ref string, block Block) (Block, error) {
	if b.cfg.URL == "" || !b.cfg.Serve {
		return block, nil
	}
	out := slices.Clone(block)
	for i, e := range out {
		for _, key := range []string{"context", "content"} {
			list, ok := e.Body.Get(key)
			if !ok || list.Kind() != wire.Array {
				continue
			}
			elems := slices.Collect(list.Elems())
			for n, c := range elems {
				if c.Len() != 1 || c.At(0).GetStr("file") == "" {
					continue
				}
				address, err := b.address(ctx, ref, c.At(0))
				if err != nil {
					return nil, err
				}
				elems[n] = wire.Obj(wire.Member{Key: c.Members()[0].Key, Value: address})
			}
			e.Body = e.Body.With(key, wire.Arr(elems...))
		}
		out[i] = e
	}
	return out, nil
}

// address is the form of an attachment in which it travels: {uri, name, mime, size, sha256}.
func (b *Bridge) address(ctx context.Context, ref string, stored wire.Value) (wire.Value, error) {
	file := stored.GetStr("file")
	a, err := b.x.Attachment(ctx, Owner("mesh"), ref, file)
	if refused, ok := errors.AsType[*wire.Error](err); ok && !refused.Retry {
		return stored, nil // named and never there
	}
	if err != nil {
		return stored, err
	}
	token, err := b.x.shareToken(ctx, ref, file)
	if err != nil {
		return stored, err
	}
	sum := sha256.Sum256(a.Data)
	name := stored.GetStr("name")
	if name == "" {
		name = file
	}
	at := b.cfg.URL + "/api/v1/exchanges/" + b.x.id + "/shared/" + url.PathEscape(ref) + "/attachments/" + url.PathEscape(file) + "?token=" + token
	return wire.Obj(
		wire.Member{Key: "uri", Value: wire.Text(at)}, wire.Member{Key: "name", Value: wire.Text(name)},
		wire.Member{Key: "mime", Value: wire.Text(a.Mime)}, wire.Member{Key: "size", Value: wire.Int(int64(len(a.Data)))},
		wire.Member{Key: "sha256", Value: wire.Text(hex.EncodeToString(sum[:]))}), nil
}

const sharedRoute = "GET shared/{}/attachments/{}"

// sharedFile is GET shared/{ref}/attachments/{file}?token=…, which needs no key. A wrong token counts like a wrong key.
func (r *call) sharedFile() error {
	ctx := r.c.Request().Context()
	ref, file := r.path[1], r.path[3]
	if !safeRef.MatchString(ref) || !attachmentName.MatchString(file) {
		return missing("no such attachment")
	}
	token, err := r.x.shareToken(ctx, ref, file)
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
