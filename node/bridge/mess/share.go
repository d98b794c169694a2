package mess

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/url"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// A large attachment does not fit into a message of the mesh. It travels as an address on our exchange that nobody can
// guess, with its size and digest (MESS section 12), and is fetched there only if the other side's owner wants it.

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
		return b.travelling(ctx, ref, v, &room, l != nil && l.IsFolder())
	})
}

// travelling is the form in which an attachment travels: {uri, name, mime} with its data, as long as there is room, or
// {uri, name, mime, size, sha256} with its address.
func (b *Bridge) travelling(ctx context.Context, ref string, stored wire.Value, room *int, toFolder bool) (wire.Value, error) {
	file := stored.GetStr("file")
	a, err := b.x.Attachment(ctx, exchange.Owner("mesh"), ref, file)
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
		token, err := b.x.ShareToken(ctx, ref, file)
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
	token, err := b.x.ShareToken(ctx, ref, file)
	if err != nil {
		return stored, err
	}
	sum := sha256.Sum256(a.Data)
	at := b.cfg.URL + "/api/v1/exchanges/" + b.x.ID() + "/shared/" + url.PathEscape(ref) + "/attachments/" + url.PathEscape(file) + "?token=" + token
	return form(at).With("size", wire.Int(int64(len(a.Data)))).With("sha256", wire.Text(hex.EncodeToString(sum[:]))), nil
}
