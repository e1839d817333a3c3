// Package template builds and stores root filesystems.
//
// A [Store] is a folder of content-addressed, read-only EROFS images and of refs, which
// map a Template's name to an image. A [Builder] makes an image from a [Source]: an OCI
// image or Debian packages. The root filesystem of every Source then goes through the
// same steps, so that a Sandbox always has the same tools, user and folders.
//
// A digest is the SHA-256 of the image file as 64 lower-case hex digits: safe as a file
// name. Images contain no build time or place, so equal trees give equal digests.
package template
