package mew

import (
	"bytes"
	"errors"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/yamltree"
)

// maxYAML bounds a space.yaml in bytes.
const maxYAML = 1 << 20

// parseSpaceFile reads the text of a space.yaml. The operator wrote it for the reference implementation, so its numbers
// are those of YAML, and a byte order mark is skipped.
func parseSpaceFile(data []byte) (wire.Value, error) {
	docs, err := yamltree.Parse(bytes.TrimPrefix(data, []byte("\ufeff")), yamltree.Options{
		Limits:  yamltree.Limits{Bytes: maxYAML, Depth: 33, Nodes: 100_000, Keys: 5_000, KeyBytes: maxYAML, Marks: maxYAML},
		Numbers: true,
	})
	if err != nil {
		return wire.Value{}, err
	}
	if len(docs) == 0 {
		return wire.Value{}, errors.New("the file is empty")
	}
	return docs[0].Value, nil
}
