package thread

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// MaxUpload bounds a file that the owner uploads, in bytes (MESS-58).
const MaxUpload = 10 << 20

// Sniff returns the kind (image, audio, video or file) and the MIME type of a file from its first bytes.
func Sniff(data []byte) (kind, mime string) {
	mime, _, _ = strings.Cut(http.DetectContentType(data), ";")
	// A text that begins with "<" counts as plain bytes, because a browser would run SVG and HTML. DetectContentType
	// skips the same white space before it.
	if bytes.HasPrefix(bytes.TrimLeft(data, "\t\n\f\r "), []byte("<")) {
		mime = "application/octet-stream"
	}
	kind, _, _ = strings.Cut(mime, "/")
	if !slices.Contains([]string{"image", "audio", "video"}, kind) {
		kind = "file"
	}
	return kind, mime
}

var unsafeChars = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// AttachmentFile returns the name under which an attachment is stored (MESS-46). serial is the number of its message. A
// kind that cannot be a file counts as "file".
func AttachmentFile(serial int, kind, name, mime string) string {
	if !IsFileKind(kind) {
		kind = "file"
	}
	name = cmp.Or(strings.Trim(unsafeChars.ReplaceAllString(name, "_"), "_"), kind)
	name = name[max(0, len(name)-100):]
	if !strings.Contains(name, ".") {
		name += "." + extension(mime)
	}
	return fmt.Sprintf("att-%03d-%s-%s", serial, kind, name)
}

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

// ContentKey maps an entry type to the name of the member that has the content of such an entry.
var ContentKey = map[string]string{"request": "context", "reply": "context", "response": "content"}

// fileKinds are the kinds of content that may be files.
var fileKinds = []string{"image", "audio", "video", "file"}

// IsFileKind reports whether content of this kind may be a file.
func IsFileKind(kind string) bool { return slices.Contains(fileKinds, kind) }

// ResourceURI returns the address of an image, audio, video or file, or "" for other content.
func ResourceURI(kind string, v wire.Value) string {
	if !IsFileKind(kind) {
		return ""
	}
	if uri, ok := v.Str(); ok {
		return uri
	}
	return v.GetStr("uri")
}

// NotFetched is the name of the member in which a content entry states why its file was not fetched.
const NotFetched = "not_fetched"

// SplitResource splits content://ref/file, the address of a file of a thread.
func SplitResource(address string) (ref, file string, ok bool) {
	rest, hasScheme := strings.CutPrefix(address, "content://")
	ref, file, ok = strings.Cut(rest, "/")
	return ref, file, hasScheme && ok && IsSafeRef(ref) && IsAttachmentName(file)
}

// QualifyFiles returns a block of foreignRef, a thread of another exchange, with addresses in place of file names. A
// bare name would mean a file of our thread.
func QualifyFiles(b Block, foreignRef string) Block {
	out, _ := b.MapContent(func(_ string, v wire.Value) (wire.Value, error) { // the function never fails
		if file := v.GetStr("file"); IsAttachmentName(file) {
			v = v.Without("file").With("resource", wire.Text("content://"+foreignRef+"/"+file))
		}
		return v, nil
	})
	return out
}

// AttachmentTail returns the name of an attachment without the prefix that [AttachmentFile] adds.
func AttachmentTail(file string) string {
	parts := strings.SplitN(file, "-", 4)
	return parts[len(parts)-1]
}

// ToResources returns a tree in which attachments have their addresses: {resource: content://thread/file, mime, size}
// (MESS-10).
func ToResources(ref string, v wire.Value) wire.Value {
	switch v.Kind() {
	case wire.Array:
		elems := slices.Collect(v.Elems())
		for i := range elems {
			elems[i] = ToResources(ref, elems[i])
		}
		return wire.Arr(elems...)
	case wire.Object:
		if file := v.GetStr("file"); file != "" && IsAttachmentName(file) {
			mime, _ := v.Get("mime")
			size, _ := v.Get("size")
			return wire.Obj(wire.TextField("resource", "content://"+ref+"/"+file), wire.Field("mime", mime), wire.Field("size", size))
		}
		members := slices.Clone(v.Members())
		for i := range members {
			members[i].Value = ToResources(ref, members[i].Value)
		}
		return wire.Obj(members...)
	}
	return v
}
