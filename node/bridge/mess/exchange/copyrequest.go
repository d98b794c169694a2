package exchange

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// An executor of a new thread may have no access to the older threads that the new one replaces. The new request is
// therefore complete: it contains everything that the work needs, with files.

// maxCopied bounds the bytes of attachments that one transaction reads for new threads. It also bounds the bytes that
// the transaction writes.
const maxCopied = 64 << 20

var errCopiesTooLarge = thread.Conflict("the files of the request are too large to be copied to the new threads")

// copyRequest returns the request of a thread for use in a successor. Attachments of the thread get addresses that are
// valid in this transaction only; the new thread that names one gets a copy of the file.
func (t *tx) copyRequest(ctx context.Context, th *thread.Thread) (wire.Value, error) {
	body, err := t.originalRequest(ctx, th)
	if err != nil {
		return body, err
	}
	b, err := thread.Block{{Type: "request", Body: body}}.MapContent(func(kind string, v wire.Value) (wire.Value, error) {
		file := v.GetStr("file")
		if !thread.IsFileKind(kind) || !thread.IsAttachmentName(file) {
			return v, nil
		}
		rec, err := t.readRecord(ctx, NSFiles, th.Ref+"/"+file)
		if IgnoreMissing(err) != nil {
			return v, err
		}
		var a Attachment
		if err != nil || json.Unmarshal(rec.Body, &a) != nil {
			return v, nil // named, but never stored
		}
		if t.files.bytesRead += len(a.Data); t.files.bytesRead > maxCopied {
			return v, errCopiesTooLarge
		}
		uri := "copy:" + rand.Text()
		t.files.named[uri] = File{Mime: a.Mime, Data: a.Data, copied: true}
		return wire.Obj(wire.TextField("uri", uri)).WithOptional("name", v.GetStr("name")), nil
	})
	if err != nil {
		return body, err
	}
	return b[0].Body, nil
}

// readRecord returns a record as this transaction leaves it.
func (t *tx) readRecord(ctx context.Context, ns, key string) (store.Record, error) {
	for _, c := range slices.Concat(t.changes, t.files.stored) {
		if c.Record.NS == ns && c.Record.Key == key && !c.Delete {
			return c.Record, nil
		}
	}
	return t.x.records.Get(ctx, ns, key, t.now)
}

// reaches reports whether a thread in refs is also in others, or waits for a thread in others, directly or indirectly.
// After 1000 threads it gives up and returns true, so that the merge is refused.
func (t *tx) reaches(ctx context.Context, refs, others []string, seen map[string]bool) (bool, error) {
	for _, ref := range refs {
		if slices.Contains(others, ref) || len(seen) > 1000 {
			return true, nil
		}
		if seen[ref] {
			continue
		}
		seen[ref] = true
		th, err := t.load(ctx, ref)
		if err != nil {
			if IgnoreMissing(err) != nil {
				return false, err
			}
			continue
		}
		if found, err := t.reaches(ctx, slices.Concat(th.DependsOn, th.Successors), others, seen); found || err != nil {
			return found, err
		}
	}
	return false, nil
}
