/*
 * augment.h: attr.augment of AUGMENT operations: random changes of images (N, H, W, C), in training only.
 * Every sample draws its own numbers, keyed as all random layers are. Ranges are [a, b) as the layer's factor resolves:
 *
 *   FLIP         a[0]: 1 left-right, 2 up-down, 3 both; each with probability 1/2
 *   ROTATION     a[0], a[1]: range in full turns, counter-clockwise
 *   ZOOM         a[0], a[1]: height (+0.2 shows 20 % more); a[2], a[3]: width; a[4] = 0: width as height
 *   TRANSLATION  a[0], a[1]: part of the height, downwards; a[2], a[3]: part of the width, to the right
 *   SHEAR        a[0], a[1]: along x; a[2], a[3]: along y
 *   CONTRAST     a[0], a[1]: range of the factor itself (1 - lower, 1 + upper); a[2], a[3]: values are kept within
 *   BRIGHTNESS   a[0], a[1]: part of the value range added; a[2], a[3]: value range
 *   CROP         to the output's height and width, at a random place
 *   GRAYSCALE    a[0]: probability
 *   INVERT       a[0]: probability; a[2], a[3]: value range
 *
 * ROTATION, ZOOM, TRANSLATION, SHEAR: a[5] what lies outside: 0 reflect, 1 wrap, 2 constant, 3 nearest; a[6] the
 * constant; a[7] interpolation: 0 bilinear, 1 nearest.
 */
#ifndef MF_GRAPH_AUGMENT_H
#define MF_GRAPH_AUGMENT_H

typedef enum mf_augment {
    MF_AUGMENT_FLIP,
    MF_AUGMENT_ROTATION,
    MF_AUGMENT_ZOOM,
    MF_AUGMENT_TRANSLATION,
    MF_AUGMENT_SHEAR,
    MF_AUGMENT_CONTRAST,
    MF_AUGMENT_BRIGHTNESS,
    MF_AUGMENT_CROP,
    MF_AUGMENT_GRAYSCALE,
    MF_AUGMENT_INVERT,
    MF_AUGMENT_COUNT,
    MF_AUGMENT_OTHER = 255 /* colour layers that keep the shape: they can be planned, no backend runs them */
} mf_augment;

#endif
