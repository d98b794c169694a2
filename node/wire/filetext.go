package wire

import (
	"bytes"
	"errors"
)

// FileText returns the text of a file that a person may have written with an editor of Windows: without a byte order
// mark. A file in UTF-16 is an error.
func FileText(data []byte) ([]byte, error) {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) || bytes.IndexByte(data[:min(len(data), 64)], 0) >= 0 {
		return nil, errors.New("the file is in UTF-16: save it as UTF-8")
	}
	return bytes.TrimPrefix(data, []byte("\ufeff")), nil
}
