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

// maxCopied bounds the bytes of attachments that one unit reads for new threads, and those that it writes.
const maxCopied = 64 << 20

var errCopies = thread.Conflict("the files of the request are too large to be copied to the new threads")

// copyRequest returns the request of a thread for use in a successor. Attachments of the thread get addresses that are
// valid in this transaction only; the new thread that names one gets a copy of the file.
func (t *tx) copyRequest(ctx context.Context, th *thread.Thread) (wire.Value, error) {
	body, err := t.originalRequest(ctx, th)
	if err != nil {
		return body, err
	}
	list, _ := body.Get("context")
	if list.Kind() != wire.Array {
		return body, nil
	}
	elems := slices.Collect(list.Elems())
	for i, c := range elems {
		if c.Len() != 1 || thread.ResourceURI(c.Members()[0].Key, wire.Text("any")) == "" || !thread.IsAttachmentName(c.At(0).GetStr("file")) {
			continue
		}
		rec, err := t.readRecord(ctx, NSFiles, th.Ref+"/"+c.At(0).GetStr("file"))
		if IgnoreMissing(err) != nil {
			return body, err
		}
		var a Attachment
		if err != nil || json.Unmarshal(rec.Body, &a) != nil {
			continue // named, but never stored
		}
		if t.files.read += len(a.Data); t.files.read > maxCopied {
			return body, errCopies
		}
		uri := "copy:" + rand.Text()
		t.files.named[uri] = File{Mime: a.Mime, Data: a.Data, copied: true}
		form := wire.Obj(wire.TextField("uri", uri))
		if name, ok := c.At(0).Get("name"); ok {
			form = form.With("name", name)
		}
		elems[i] = wire.Obj(wire.Field(c.Members()[0].Key, form))
	}
	return body.With("context", wire.Arr(elems...)), nil
}

// readRecord returns a record as this block leaves it.
func (t *tx) readRecord(ctx context.Context, ns, key string) (store.Record, error) {
	for _, c := range slices.Concat(t.changes, t.files.stored) {
		if c.Record.NS == ns && c.Record.Key == key && !c.Delete {
			return c.Record, nil
		}
	}
	return t.x.records.Get(ctx, ns, key, t.now)
}

// reaches reports whether a thread in refs is also in others, or waits for a thread in others, directly or indirectly.
// After 1000 threads it gives up and returns true.
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
