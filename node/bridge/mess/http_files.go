package mess

import (
	"bytes"
	"net/http"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// maxUpload bounds a file of the owner's (MESS-58).
const maxUpload = MaxUpload

// MaxUpload is for who uploads: what is larger need not be sent.
const MaxUpload = 10 << 20

// attachment is GET requests/{ref}/attachments/{file}: never shown by a browser, only saved.
func (r *call) attachment() error {
	a, err := r.x.Attachment(r.c.Request().Context(), r.who, r.ref(), r.path[3])
	if err != nil {
		return err
	}
	h := r.c.Response().Header()
	h.Set("Content-Disposition", `attachment; filename="`+a.Name+`"`)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	return r.c.Blob(http.StatusOK, "application/octet-stream", a.Data)
}

// upload is the owner's: a file for the next message of a thread. It answers with the content entry to use.
func (r *call) upload() error {
	data, err := r.body(maxUpload)
	if err != nil {
		return err
	}
	entry, err := r.x.Upload(r.c.Request().Context(), r.who, r.ref(), r.path[3], data)
	if err != nil {
		return err
	}
	return r.tree(http.StatusCreated, entry)
}

func (r *call) importThreads() error {
	data, err := r.body(maxImport)
	if err != nil {
		return err
	}
	files, err := importFiles(data, strings.HasPrefix(r.c.Request().Header.Get("Content-Type"), "application/json"))
	if err != nil {
		return err
	}
	threads, err := r.x.Import(r.c.Request().Context(), files)
	if err != nil {
		return err
	}
	list := make([]wire.Value, len(threads))
	for i, t := range threads {
		list[i] = wire.Obj(wire.TextField("ref", t.Ref), wire.TextField("status", t.Status.Rest()))
	}
	return r.tree(http.StatusCreated, wire.Obj(
		wire.Field("imported", wire.Int(int64(len(threads)))), wire.Field("threads", wire.Arr(list...))))
}

// importFiles reads the body of an import: YAML, {content} or {files: [{name, content}]} of one thread.
func importFiles(data []byte, isJSON bool) ([][][]byte, error) {
	if !isJSON {
		return [][][]byte{{data}}, nil
	}
	v, err := wire.ParseLimits(data, thread.Limits.Depth, thread.Limits.Nodes)
	if err != nil || v.Kind() != wire.Object {
		return nil, thread.Bad("", "the body must be a JSON object")
	}
	if content := v.GetStr("content"); content != "" {
		return [][][]byte{{[]byte(content)}}, nil
	}
	list, _ := v.Get("files")
	var files []thread.File
	for f := range list.Elems() {
		name := f.GetStr("name")
		if !strings.HasSuffix(name, thread.FileSuffix) {
			continue // attachments travel as bytes, not as text
		}
		files = append(files, thread.File{Name: name, Content: f.GetStr("content")})
	}
	if len(files) == 0 {
		return nil, thread.Bad("", "the body has neither content nor files")
	}
	slices.SortFunc(files, func(a, b thread.File) int { return strings.Compare(a.Name, b.Name) })
	thread := make([][]byte, len(files))
	for i, f := range files {
		thread[i] = []byte(f.Content)
	}
	return [][][]byte{thread}, nil
}

// export is GET export/{ref}.
func (r *call) export() error {
	ctx := r.c.Request().Context()
	t, err := r.x.Thread(ctx, r.who, r.ref())
	if err != nil {
		return err
	}
	messages, err := r.x.messagesOf(ctx, t)
	if err != nil {
		return err
	}
	out := wire.Obj(wire.TextField("ref", t.Ref))
	switch r.c.QueryParam("format") {
	case "v2":
		var files []wire.Value
		for _, f := range thread.ThreadFiles(t, messages) {
			files = append(files, wire.Obj(wire.TextField("name", f.Name), wire.TextField("content", f.Content)))
		}
		out = out.With("format", wire.Text("v2")).With("files", wire.Arr(files...))
		if r.who.Owner { // who takes the whole folder of the thread along
			names, err := r.x.attachments(ctx, t.Ref)
			if err != nil {
				return err
			}
			out = out.With("folder", wire.Text(thread.FolderOf(t.Status))).With("attachments", wire.Texts(names))
		}
		return r.tree(http.StatusOK, out)
	case "", "v1":
		text := thread.ThreadText(t, messages)
		if strings.Contains(r.c.Request().Header.Get("Accept"), "yaml") {
			return r.c.Blob(http.StatusOK, "application/yaml", []byte(text))
		}
		return r.tree(http.StatusOK, out.With("format", wire.Text("v1")).With("content", wire.Text(text)))
	}
	return thread.Bad("format", "must be v1 or v2")
}

// sniff names the type of an upload by its first bytes; what is no known image, sound or film is bytes.
func sniff(data []byte) (kind, mime string) {
	mime, _, _ = strings.Cut(http.DetectContentType(data), ";")
	if bytes.HasPrefix(data, []byte("<")) { // never SVG or HTML: a browser would run it
		mime = "application/octet-stream"
	}
	kind, _, _ = strings.Cut(mime, "/")
	if !slices.Contains([]string{"image", "audio", "video"}, kind) {
		kind = "file"
	}
	return kind, mime
}
