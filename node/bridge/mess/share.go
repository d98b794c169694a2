package mess

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/url"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// A large attachment does not fit into a message of the mesh. Instead, the message contains the attachment's size,
// its digest and an unguessable address on our exchange (MESS section 12). The attachment is fetched only when the
// recipient's owner asks for it.

// maxInlineTotal bounds the inline attachments of one mesh message; the rest of its 256 KiB is for text.
const maxInlineTotal = 2 * thread.MaxInline

// shareAttachments returns a block in the form in which it is sent: small attachments inline, larger ones as addresses
// on our exchange or, if strangers cannot reach it, as names only. If the link writes to a folder, all attachments become
// addresses, and the link then stores them as files.
func (b *Bridge) shareAttachments(ctx context.Context, ref string, block thread.Block, to string) (thread.Block, error) {
	room := maxInlineTotal
	l := b.linkOf(to)
	return block.MapContent(func(_ string, v wire.Value) (wire.Value, error) {
		if v.GetStr("file") == "" {
			return v, nil
		}
		return b.shareAttachment(ctx, ref, v, &room, l != nil && l.cfg.Dir != "")
	})
}

// shareAttachment returns the form in which one attachment is sent. A small one is {uri, name, mime} with the data in
// uri while room is left. A larger one is {uri, name, mime, size, sha256} with an address on our exchange in uri. For a
// folder, all are {uri, name, mime} with the address that [enclosure] makes. An attachment without content or without an
// address stays as stored.
func (b *Bridge) shareAttachment(ctx context.Context, ref string, stored wire.Value, room *int, toFolder bool) (wire.Value, error) {
	file := stored.GetStr("file")
	a, err := b.x.Attachment(ctx, exchange.Owner("mesh"), ref, file)
	if thread.IsRefusal(err) {
		return stored, nil // the message only names the file; its content was never stored
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
	if b.cfg.URL == "" || !b.Serving() {
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
