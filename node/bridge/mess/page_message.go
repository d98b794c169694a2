package mess

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	template "github.com/DataDog/datadog-agent/pkg/template/html"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/yamltree"
)

type messageRow struct {
	From, What           string // of the sender; the status code or type of the last entry
	At                   time.Time
	Texts, Images, Files []string
	Inline               []template.URL // pictures within the message
	Fetch                []string       // addresses that the owner may fetch
}

// safeImages are the image types that a browser shows without running anything.
var safeImages = map[string]bool{"image/jpeg": true, "image/png": true, "image/gif": true, "image/webp": true}

// prose lists the members of an entry that the page shows as separate texts. shownElsewhere lists those that it shows
// in another place. It shows all other members as YAML, so that nothing is left out.
var (
	prose          = []string{"message", "action", "consequences", "reason", "notes", "text"}
	shownElsewhere = []string{"re", "code", "intent"}
)

// maxShownText bounds one YAML text on the page; the thread has the full text.
const maxShownText = 2000

// viewMessage splits a message into texts, pictures from the store, and other files.
func viewMessage(ref string, m thread.Message) messageRow {
	row := messageRow{From: m.From, At: m.At}
	for _, e := range m.Block() {
		if e.Type == "v" {
			continue
		}
		row.What = e.Type
		if code := e.Body.GetStr("code"); code != "" {
			row.What = code
		}
		if e.Body.Kind() != wire.Object {
			row.addYAML(e.Body)
			continue
		}
		rest := e.Body.Without(shownElsewhere...)
		for _, key := range prose {
			if s := e.Body.GetStr(key); s != "" {
				row.Texts = append(row.Texts, s)
				rest = rest.Without(key)
			}
		}
		var content []wire.Value
		for _, key := range []string{"context", "content"} {
			if list, ok := e.Body.Get(key); ok && list.Kind() == wire.Array {
				content = slices.AppendSeq(content, list.Elems())
				rest = rest.Without(key)
			}
		}
		if rest.Len() > 0 {
			row.addYAML(rest)
		}
		for _, entry := range content {
			row.addEntry(ref, entry)
		}
	}
	return row
}

// addYAML adds a value to the row as YAML.
func (r *messageRow) addYAML(v wire.Value) {
	text := strings.TrimSpace(string(yamltree.Append(nil, v)))
	if len(text) > maxShownText {
		text = text[:maxShownText] + "…"
	}
	r.Texts = append(r.Texts, strings.ToValidUTF8(text, ""))
}

// addEntry adds a content entry to the row.
func (r *messageRow) addEntry(ref string, entry wire.Value) {
	if s, ok := entry.Str(); ok {
		r.Texts = append(r.Texts, s)
		return
	}
	kind, v := "", wire.Value{}
	if entry.Len() == 1 {
		kind, v = entry.Members()[0].Key, entry.At(0)
	}
	file := v.GetStr("file")
	switch {
	case file != "" && kind == "image" && safeImages[v.GetStr("mime")] && thread.IsAttachmentName(file):
		r.Images = append(r.Images, url.PathEscape(ref)+"/"+url.PathEscape(file))
	case file != "":
		r.Files = append(r.Files, file)
	case strings.HasPrefix(thread.ResourceURI(kind, v), "data:"):
		r.addInline(kind, thread.ResourceURI(kind, v), v.GetStr("name"))
	default: // anything else, also an address, is shown as text
		r.addYAML(entry)
	}
}

// addInline adds an inline picture of a message to the row. It takes the type from the bytes and builds a new address
// from them, so that the address contains no text of the sender. Other inline data is only listed as a file.
func (r *messageRow) addInline(kind, uri, name string) {
	mime, data, err := thread.DecodeData(uri)
	if err != nil {
		return
	}
	if _, seen := thread.Sniff(data); kind == "image" && safeImages[seen] {
		r.Inline = append(r.Inline, template.URL("data:"+seen+";base64,"+base64.StdEncoding.EncodeToString(data)))
		return
	}
	r.Files = append(r.Files, fmt.Sprintf("%s, %s, %d bytes", cmp.Or(name, kind), mime, len(data)))
}

// addReference adds a reference to the row: the file if it was fetched, otherwise the address that the owner may fetch.
func (r *messageRow) addReference(ref string, to reference, a exchange.Attachment) {
	switch {
	case a.Name == "":
		r.Fetch = append(r.Fetch, to.uri)
	case to.kind == "image" && safeImages[a.Mime]:
		r.Images = append(r.Images, url.PathEscape(ref)+"/"+url.PathEscape(a.Name))
	default:
		r.Files = append(r.Files, a.Name)
	}
}
