package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"io/fs"
	"slices"
	"strings"
	"time"
)

// file is a file of an archive.
type file struct {
	name string // with slashes, below the archive's top directory
	mode fs.FileMode
	data []byte
}

// sortByName returns the files sorted by name, so that the order in which they were made does not show.
func sortByName(files []file) []file {
	return slices.SortedFunc(slices.Values(files), func(a, b file) int { return strings.Compare(a.name, b.name) })
}

// writeTarGz makes a tar.gz whose bytes depend only on the arguments: all files belong to root and have the same time,
// and the gzip header has no name and no time.
func writeTarGz(folder string, files []file, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(z)
	for _, f := range sortByName(files) {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: folder + "/" + f.name, Size: int64(len(f.data)), Mode: int64(f.mode),
			ModTime: at, Uname: "root", Gname: "root", Format: tar.FormatUSTAR,
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// writeZip makes a zip whose bytes depend only on the arguments.
func writeZip(folder string, files []file, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, f := range sortByName(files) {
		header := &zip.FileHeader{Name: folder + "/" + f.name, Method: zip.Deflate, Modified: at.UTC()}
		header.SetMode(f.mode)
		entry, err := w.CreateHeader(header)
		if err != nil {
			return nil, err
		}
		if _, err := entry.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
