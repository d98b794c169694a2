package mess

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"

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

// A file that we send to an exchange that is a directory is stored beside the thread (MESS-46). In the message to the
// link, an address with a token stands for the file. Without the token, somebody else could write such an address.

// enclosure returns the address that stands for a file.
func enclosure(ref, file, token string) string {
	return "content://" + ref + "/" + file + "?token=" + token
}

// findEnclosure returns the file for which an address of [enclosure] stands.
func (l *link) findEnclosure(ctx context.Context, uri string) (exchange.Attachment, bool, error) {
	at, token, ok := strings.Cut(uri, "?token=")
	ref, file, named := thread.SplitResource(at)
	if !ok || !named {
		return exchange.Attachment{}, false, nil
	}
	want, err := l.x.ShareToken(ctx, ref, file)
	if err != nil || !hmac.Equal([]byte(want), []byte(token)) {
		return exchange.Attachment{}, false, err
	}
	a, err := l.x.Attachment(ctx, exchange.Owner("link"), ref, file)
	if thread.IsRefusal(err) {
		return a, false, nil // the file was removed with its thread
	}
	return a, err == nil, err
}

// extractEnclosures replaces the addresses in a block with names, which contain serial, and returns the files.
func (r *dirRemote) extractEnclosures(ctx context.Context, b thread.Block, serial int) (thread.Block, []exchange.Attachment, error) {
	if r.findEnclosure == nil {
		return b, nil, nil
	}
	var files []exchange.Attachment
	out, err := b.MapContent(func(kind string, v wire.Value) (wire.Value, error) {
		uri := thread.ResourceURI(kind, v)
		if !strings.HasPrefix(uri, "content://") {
			return v, nil
		}
		a, ok, err := r.findEnclosure(ctx, uri)
		if err != nil || !ok {
			return v, err
		}
		name := v.GetStr("name")
		if thread.IsAttachmentName(name) { // the sender gave the file no name
			name = thread.AttachmentTail(name)
		}
		end := name[max(0, len(name)-80):]
		a.Name = thread.AttachmentFile(serial, kind, end, a.Mime)
		for n := len(files); slices.ContainsFunc(files, func(f exchange.Attachment) bool { return f.Name == a.Name }); n++ {
			a.Name = thread.AttachmentFile(serial, kind, fmt.Sprintf("%d-%s", n, end), a.Mime)
		}
		files = append(files, a)
		return a.Tree(name), nil
	})
	return out, files, err
}
