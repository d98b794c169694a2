package thread

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

const (
	MaxContent   = 500      // entries of one list
	maxEmbedding = 4096     // numbers (MESS-8)
	MaxURI       = 8 << 10  // of any URI except a data URI
	MaxInline    = 64 << 10 // larger inline data becomes an attachment (MESS-58)
)

// checkContents checks a list of content entries against MESS-8 and, in a response, MESS-9. Entries of an unknown kind
// are kept as data.
func (f *Fields) checkContents(key string) {
	inResponse := key == "content" // requests and replies have the member context instead
	for i, e := range f.List(key, MaxContent) {
		f.checkContent(e, fmt.Sprintf("%s[%d]", key, i), inResponse)
	}
}

func (f *Fields) checkContent(e wire.Value, key string, inResponse bool) {
	if _, ok := e.Str(); ok {
		return
	}
	if e.Kind() != wire.Object || e.Len() == 0 {
		f.fail(key, "must be a text or a map")
		return
	}
	if e.Len() != 1 {
		return // a map with several keys is the sender's own data
	}
	f = f.In(e, key)
	switch kind, v := e.Members()[0].Key, e.At(0); kind {
	case "image", "audio", "video", "file":
		f.checkResource(kind, v)
	case "text":
		_, ok := v.Str()
		f.Check(ok, kind, "must be a text")
	case "url", "ref":
		s, ok := v.Str()
		f.Check(ok && s != "" && len(s) <= MaxURI && !hasControls(s), kind, "must be a text of 1 to 8192 bytes without control characters")
	case "json":
		f.Check(v.Kind() == wire.Object || v.Kind() == wire.Array, kind, "must be a map or a list")
	case "embedding":
		f.checkEmbedding(v)
	case "location":
		f.checkLocation(v)
	case "confirmation", "structured", "error":
		if inResponse {
			f.checkResult(kind, v)
		}
	}
}

// checkResult checks the kinds of MESS-9. They have a meaning only in responses.
func (f *Fields) checkResult(kind string, v wire.Value) {
	switch kind {
	case "confirmation":
		if _, ok := v.Boolean(); ok {
			return
		}
		g := f.In(v, kind)
		_, present := g.Boolean("confirmed")
		g.Check(present, "confirmed", "is required")
	case "structured":
		f.Check(v.Kind() == wire.Object, kind, "must be a map")
	case "error":
		g := f.In(v, kind)
		code, ok := g.Get("code")
		_, isNumber := code.Num()
		text, isText := code.Str()
		g.Check(ok && (isNumber || isText && text != ""), "code", "must be a number or a text")
		g.Required("message", MaxProse)
	}
}

func (f *Fields) checkEmbedding(v wire.Value) {
	f.Check(v.Kind() == wire.Array && v.Len() <= maxEmbedding, "embedding", fmt.Sprintf("must be a list of at most %d numbers", maxEmbedding))
	for n := range v.Elems() {
		f.Check(n.Kind() == wire.Number, "embedding", "must hold numbers only")
	}
}

func (f *Fields) checkLocation(v wire.Value) {
	if _, ok := v.Str(); ok {
		return
	}
	g := f.In(v, "location")
	for _, key := range []string{"lat", "lng", "accuracy", "altitude"} {
		g.checkNumber(key)
	}
	for _, key := range []string{"name", "address", "description"} {
		g.Text(key, MaxProse)
	}
}

// checkResource checks image, audio, video and file: a URI, {uri, name?, mime?}, or one of the two forms of an external
// attachment (MESS-10).
func (f *Fields) checkResource(kind string, v wire.Value) {
	if s, ok := v.Str(); ok {
		f.checkURI(kind, s)
		return
	}
	f = f.In(v, kind)
	f.Text("name", maxName)
	f.Text("mime", 200)
	switch {
	case f.has("uri"):
		f.checkURI("uri", v.GetStr("uri"))
	case f.has("file"):
		name := f.Required("file", 300)
		f.Check(IsAttachmentName(name), "file", "must be the name of an attachment")
		f.Required("mime", 200)
		_, present := f.integer("size", 0, maxFileSize)
		f.Check(present, "size", "is required")
	case f.has("resource"):
		f.Required("resource", MaxURI)
		f.integer("size", 0, maxFileSize)
	default:
		f.fail("uri", "is required")
	}
}

// maxFileSize bounds the size that a message may state for a file.
const maxFileSize = 1 << 40

func (f *Fields) has(key string) bool { return HasValue(f.Value, key) }

// HasValue reports whether an object has the member, with a value other than null.
func HasValue(v wire.Value, key string) bool {
	m, ok := v.Get(key)
	return ok && !m.IsNull()
}

// checkURI checks the form of a URI. The target does not matter here, because nothing is fetched (MESS-63).
func (f *Fields) checkURI(key, s string) {
	if !strings.HasPrefix(s, "data:") {
		f.Check(s != "" && len(s) <= MaxURI && !hasControls(s), key, "must be a URI")
	} else if _, _, err := DecodeData(s); err != nil {
		f.fail(key, err.Error())
	}
}

// attachmentName and mimeForm do not bound the parts that they capture, because a bound such as {1,180} takes
// milliseconds to compile. Their callers check the lengths.
var (
	attachmentName = regexp.MustCompile(`^att-\d{3,6}-(?:image|audio|video|file)-([A-Za-z0-9._-]+)$`)
	mimeForm       = regexp.MustCompile(`^([A-Za-z0-9!#$&^_.+-]+)/([A-Za-z0-9!#$&^_.+-]+)$`)
)

// IsAttachmentName reports whether name is a file name that MESS-46 allows in a thread's directory.
func IsAttachmentName(name string) bool {
	m := attachmentName.FindStringSubmatch(name)
	return m != nil && len(m[1]) <= 180
}

// isMIMEType reports whether s is a type and a subtype of at most 100 characters each.
func isMIMEType(s string) bool {
	m := mimeForm.FindStringSubmatch(s)
	return m != nil && len(m[1]) <= 100 && len(m[2]) <= 100
}

// DecodeData returns the MIME type and the content of data:<mime>;base64,<data> (MESS-11).
func DecodeData(uri string) (mime string, data []byte, err error) {
	head, text, ok := strings.Cut(strings.TrimPrefix(uri, "data:"), ",")
	mime, hasBase64 := strings.CutSuffix(head, ";base64")
	switch {
	case !ok || !hasBase64:
		return "", nil, errors.New("must be data:<mime>;base64,<data>")
	case !isMIMEType(mime):
		return "", nil, errors.New("the MIME type of the data URI is not acceptable")
	case len(text) > base64.StdEncoding.EncodedLen(MaxDocument):
		return "", nil, errors.New("the data is too large")
	}
	data, err = base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || text == "" || strings.ContainsAny(text, "\r\n") { // the decoder skips line breaks
		return "", nil, errors.New("the data is not strict base64")
	}
	return mime, data, nil
}

// Digest returns a short hash of a value. The order of the members of objects does not matter.
func Digest(v wire.Value) string {
	sum := signing.Digest(v)
	return hex.EncodeToString(sum[:16])
}
