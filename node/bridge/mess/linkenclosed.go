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

// A file of ours that goes to a folder behind a link lies there beside the thread, as the files of others do (MESS-46). The
// message of the mesh that takes it there has an address in its place, which nobody else can write: what others say in our
// threads may look like one.

// enclosure is the address of a file of a thread of ours.
func enclosure(ref, file, token string) string {
	return "content://" + ref + "/" + file + "?token=" + token
}

// enclosed returns the file that an address of [enclosure] names.
func (l *link) enclosed(ctx context.Context, uri string) (exchange.Attachment, bool, error) {
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
		return a, false, nil // it went with its thread
	}
	return a, err == nil, err
}

// filed puts files in the place of the addresses in a block, under the names that they have with the message of this serial.
func (r *dirRemote) filed(ctx context.Context, b thread.Block, serial int) (thread.Block, []exchange.Attachment, error) {
	if r.enclosed == nil {
		return b, nil, nil
	}
	var files []exchange.Attachment
	out, err := b.MapContent(func(kind string, v wire.Value) (wire.Value, error) {
		uri := thread.ResourceURI(kind, v)
		if !strings.HasPrefix(uri, "content://") {
			return v, nil
		}
		a, ok, err := r.enclosed(ctx, uri)
		if err != nil || !ok {
			return v, err
		}
		name := v.GetStr("name")
		if thread.AttachmentName.MatchString(name) { // it had none but that
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
