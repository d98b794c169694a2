package mess

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// A file of ours that goes to a folder behind a link is stored beside the thread there, like the files of others
// (MESS-46). The mesh message that brings the file has an address in its place. The address contains a token, because a
// text that somebody else writes in our thread may look like such an address.

// enclosure returns the address of a file of a thread of ours.
func enclosure(ref, file, token string) string {
	return "content://" + ref + "/" + file + "?token=" + token
}

// findEnclosure returns the file that an address of [enclosure] names.
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
	if e, refused := errors.AsType[*wire.Error](err); refused && !e.Retry {
		return a, false, nil // the file was removed with its thread
	}
	return a, err == nil, err
}

// extractEnclosures replaces the addresses in a block by files, and returns these files. Their names contain serial,
// the number of the message.
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
		if thread.AttachmentName.MatchString(name) { // the address was its only name
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
