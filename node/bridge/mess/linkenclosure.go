package mess

import (
	"context"
	"crypto/hmac"
	"fmt"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

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
