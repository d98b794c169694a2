package mess

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Attachment is a file of a thread. Its bytes are never interpreted here.
type Attachment struct {
	Name string `json:"name"` // att-003-image-photo.jpg
	Mime string `json:"mime"`
	Size int    `json:"size"`
	Data []byte `json:"data,omitempty"`
}

var notName = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// attachmentFile names an attachment (MESS-46).
func attachmentFile(serial int, kind, name, mime string) string {
	name = strings.Trim(notName.ReplaceAllString(name, "_"), "_")
	if name == "" {
		name = kind
	}
	if len(name) > 100 {
		name = name[len(name)-100:]
	}
	if !strings.Contains(name, ".") {
		name += "." + extension(mime)
	}
	return fmt.Sprintf("att-%03d-%s-%s", serial, kind, name)
}

// extension returns a file ending for a MIME type.
func extension(mime string) string {
	known := map[string]string{
		"image/jpeg": "jpg", "image/png": "png", "image/gif": "gif", "image/webp": "webp", "application/pdf": "pdf",
		"audio/wav": "wav", "audio/mpeg": "mp3", "video/mp4": "mp4", "text/plain": "txt", "application/json": "json",
	}
	if ext := known[mime]; ext != "" {
		return ext
	}
	return "bin"
}

// contentKey is the member of an entry that holds content.
var contentKey = map[string]string{"request": "context", "reply": "context", "response": "content"}

// detach moves large inline data of an entry to attachments of the thread (MESS-58), and the files of the owner's that it
// names (MESS-63).
func (t *tx) detach(th *thread.Thread, e thread.Entry) thread.Entry {
	key := contentKey[e.Type]
	list, ok := e.Body.Get(key)
	if !ok || list.Kind() != wire.Array || len(list.JSON()) < thread.MaxInline && len(t.own) == 0 {
		return e
	}
	elems := slices.Collect(list.Elems())
	for i, c := range elems {
		if c.Len() == 1 {
			kind := c.Members()[0].Key
			if moved, ok := t.moveOut(th, kind, c.At(0), i); ok {
				elems[i] = wire.Obj(wire.Field(kind, moved))
			}
		}
	}
	e.Body = e.Body.With(key, wire.Arr(elems...))
	return e
}

// resourceURI returns the address of an image, audio, video or file; "" for other content.
func resourceURI(kind string, v wire.Value) string {
	if !slices.Contains([]string{"image", "audio", "video", "file"}, kind) {
		return ""
	}
	if uri, ok := v.Str(); ok {
		return uri
	}
	return v.GetStr("uri")
}

// moveOut stores one large data URI, or a file of the owner's, and returns the stored form of the content (MESS-10).
func (t *tx) moveOut(th *thread.Thread, kind string, v wire.Value, n int) (wire.Value, bool) {
	uri, name := resourceURI(kind, v), v.GetStr("name")
	foreign := v.GetStr("resource")
	own, ok := t.own[cmp.Or(uri, foreign)]
	mime, raw := own.mime, own.data
	if ok && uri == "" {
		if own.lost == "" && th.Taken+len(raw) > thread.MaxThread {
			own.lost = "the files of the thread are too large together"
		}
		if own.lost != "" { // it is said where it would be
			return v.With(notFetched, wire.Text(own.lost)), true
		}
		th.Taken += len(raw)
	}
	if !ok {
		if len(uri) <= thread.MaxInline || !strings.HasPrefix(uri, "data:") {
			return v, false
		}
		text, err := "", error(nil)
		if mime, text, err = thread.SplitData(uri); err != nil {
			return v, false
		}
		if raw, err = thread.StrictBase64.DecodeString(text); err != nil {
			return v, false
		}
	}
	if own.copied {
		t.copied += len(raw)
	}
	name = cmp.Or(name, own.name)
	file := func() string {
		return attachmentFile(th.Serial, kind, strings.TrimSuffix(fmt.Sprintf("%d-%s", n, name[max(0, len(name)-80):]), "-"), mime)
	}
	a := Attachment{Name: file(), Mime: mime, Size: len(raw), Data: raw}
	for t.brings(th, a) { // another entry of the same message has one in this place
		n += thread.MaxContent
		a.Name = file()
	}
	t.changes = append(t.changes, store.Change{Record: a.record(th.Ref), IfRev: store.Any})
	return a.tree(name), true
}

// brings says whether the block has an attachment of this name already.
func (t *tx) brings(th *thread.Thread, a Attachment) bool {
	key := th.Ref + "/" + a.Name
	return slices.ContainsFunc(t.changes, func(c store.Change) bool { return c.Record.NS == nsFiles && c.Record.Key == key })
}

func (a Attachment) record(ref string) store.Record {
	return store.Record{NS: nsFiles, Key: ref + "/" + a.Name, Body: thread.Encode(a)}
}

// tree is the stored form.
func (a Attachment) tree(name string) wire.Value {
	v := wire.Obj(
		wire.TextField("file", a.Name), wire.TextField("mime", a.Mime),
		wire.Field("size", wire.Int(int64(a.Size))),
	)
	if name != "" {
		v = v.With("name", wire.Text(name))
	}
	return v
}

// Attachment returns a file of a thread that the actor may see.
func (x *Exchange) Attachment(ctx context.Context, who Actor, ref, file string) (Attachment, error) {
	if _, err := x.Thread(ctx, who, ref); err != nil {
		return Attachment{}, err
	}
	if !thread.AttachmentName.MatchString(file) {
		return Attachment{}, thread.Bad("file", "is no name of an attachment")
	}
	rec, err := x.records.Get(ctx, nsFiles, ref+"/"+file, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return Attachment{}, thread.Missing("no such attachment")
	}
	if err != nil {
		return Attachment{}, err
	}
	var a Attachment
	if err := json.Unmarshal(rec.Body, &a); err != nil {
		return a, fmt.Errorf("decode attachment: %w", err)
	}
	return a, nil
}
