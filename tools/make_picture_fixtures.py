#!/usr/bin/env python3
"""Makes tests/fixtures/pictures: small pictures of every kind in class folders, and what Keras makes of them.

Two programs, since Pillow and TensorFlow need not be in one environment:
    make_picture_fixtures.py draw FOLDER      needs Pillow and NumPy
    make_picture_fixtures.py keras FOLDER     needs TensorFlow; writes FOLDER.npz: x and y of image_dataset_from_directory,
                                              and FOLDER.keras, a small model of them
    make_picture_fixtures.py augment FILE     needs Keras; writes FILE, a small model that begins with random layers
    make_picture_fixtures.py draw_webp FOLDER, tensorflow_webp FOLDER: the same for WebP, by tf.io.decode_webp
"""
import os
import struct
import sys
import zlib


def draw(root):
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(3)

    def pixels(h, w):
        y, x = np.mgrid[0:h, 0:w]
        a = np.stack([128 + 100 * np.sin(x / 7 + y / 11), 128 + 90 * np.cos(x / 5 - y / 9), (x * 3 + y * 5) % 256], -1)
        return np.clip(a + rng.normal(0, 12, (h, w, 3)), 0, 255).astype(np.uint8)

    def save(image, name, **options):
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        image.save(path, **options)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    def interlaced(a, name):
        h, w, _ = a.shape
        raw = b""
        for x0, y0, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)):
            for row in a[y0::dy, x0::dx]:
                raw += b"\0" + row.tobytes() if row.size else b""
        head = struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 1)
        with open(os.path.join(root, name), "wb") as f:
            f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))

    im = Image.fromarray(pixels(29, 37))
    same = Image.fromarray(pixels(24, 20))
    alpha = im.convert("RGBA")
    alpha.putalpha(Image.fromarray(pixels(29, 37)[:, :, 0]))
    turned = Image.Exif()
    turned[0x112] = 6
    save(im, "jpeg/plain.jpg", quality=85, subsampling=2)
    save(im, "jpeg/full.jpeg", quality=95, subsampling=0)
    save(im, "jpeg/half.JPG", quality=70, subsampling=1)
    save(same, "jpeg/same_size.jpg")
    save(im, "jpeg/progressive.jpg", progressive=True)
    save(im.convert("L"), "jpeg/deeper/grey.jpg")
    save(im.convert("CMYK"), "jpeg/deeper/ink.jpg")
    save(im, "jpeg/turned.jpg", exif=turned)
    save(im, "other/colours.png")
    save(alpha, "other/alpha.png")
    save(im.convert("L"), "other/grey.png")
    save(alpha.convert("LA"), "other/grey_alpha.png")
    save(im.quantize(64), "other/palette.png")
    save(im.quantize(16), "other/transparent.png", transparency=3)
    save(im.convert("1"), "other/one_bit.png")
    save(Image.fromarray(pixels(29, 37)[:, :, 0].astype(np.uint16) * 257 + 13), "other/sixteen_bits.png")
    interlaced(pixels(29, 37), "other/interlaced.png")
    save(im, "other/colours.bmp")
    save(im.convert("L"), "other/grey.bmp")
    save(im, "other/one.gif")
    save(im, "other/interlaced.gif", interlace=1)
    im.save(os.path.join(root, "other/moving.gif"), save_all=True, append_images=[Image.fromarray(pixels(29, 37))] * 2)
    os.makedirs(os.path.join(root, ".hidden"), exist_ok=True)
    save(im, ".hidden/never.png")
    with open(os.path.join(root, "other/notes.txt"), "w") as f:
        f.write("Keras leaves this file out.\n")


def keras(root):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras as k
    import numpy as np

    data = k.utils.image_dataset_from_directory(root, image_size=(24, 20), shuffle=False, batch_size=100)
    x, y = next(iter(data))
    np.savez_compressed(root.rstrip("/") + ".npz", x=x.numpy(), y=y.numpy())
    layers = k.layers
    k.utils.set_random_seed(1)
    image = k.Input((24, 20, 3), name="image")
    z = layers.Conv2D(4, 3, strides=2, activation="relu")(layers.Rescaling(1 / 255)(image))
    z = layers.Dense(2, activation="softmax", name="kind")(layers.GlobalAveragePooling2D()(z))
    model = k.Model(image, z)
    model.compile(k.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.save(root.rstrip("/") + ".keras")
    shuffled = k.utils.image_dataset_from_directory(root, image_size=(24, 20), shuffle=True, seed=7, batch_size=100,
                                                    validation_split=0.25, subset="training")
    print("under seed 7, a quarter held out:", [os.path.basename(p) for p in shuffled.file_paths])


def augment(path):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras as k

    layers = k.layers
    k.utils.set_random_seed(1)
    image = k.Input((24, 20, 3), name="image")
    z = layers.Rescaling(1 / 255)(image)
    for layer in (layers.RandomFlip(), layers.RandomRotation(0.1), layers.RandomZoom((-0.2, 0.3)),
                  layers.RandomTranslation(0.1, 0.2, fill_mode="constant"), layers.RandomContrast(0.3, value_range=(0, 1)),
                  layers.RandomBrightness(0.2, value_range=(0, 1)), layers.RandomCrop(20, 18)):
        z = layer(z)
    z = layers.Dropout(0.25)(layers.Conv2D(4, 3, strides=2, activation="relu")(z))
    model = k.Model(image, layers.Dense(2, activation="softmax")(layers.GlobalAveragePooling2D()(z)))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.save(path)


def draw_webp(root):
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(5)
    y, x = np.mgrid[0:29, 0:37]
    a = np.stack([128 + 100 * np.sin(x / 7 + y / 11), 128 + 90 * np.cos(x / 5 - y / 9), (x * 3 + y * 5) % 256], -1)
    im = Image.fromarray(np.clip(a + rng.normal(0, 12, a.shape), 0, 255).astype(np.uint8))
    alpha = im.convert("RGBA")
    alpha.putalpha(Image.fromarray((x * 6 + y).astype(np.uint8)))
    os.makedirs(root + "/a", exist_ok=True)
    im.save(root + "/a/lossy.webp", quality=80)
    im.save(root + "/a/lossless.webp", lossless=True)
    alpha.save(root + "/a/alpha.webp", quality=70)
    alpha.save(root + "/a/alpha_lossless.webp", lossless=True)
    im.crop((0, 0, 20, 24)).save(root + "/a/same_size.webp")
    im.save(root + "/a/zmoving.webp", save_all=True, append_images=[im.rotate(180)])


def tensorflow_webp(root):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import numpy as np
    import tensorflow as tf

    x = []
    for name in sorted(os.listdir(root + "/a"))[:-1]:
        data = tf.io.read_file(os.path.join(root, "a", name))
        pixels = tf.io.decode_webp(data, channels=4 if "alpha" in name else 3)[..., :3]
        x.append(tf.image.resize(pixels, (24, 20)).numpy().reshape(24, 20, 3))
    np.savez_compressed(root.rstrip("/") + ".npz", x=np.stack(x))


if __name__ == "__main__":
    {"draw": draw, "keras": keras, "augment": augment, "draw_webp": draw_webp, "tensorflow_webp": tensorflow_webp}[sys.argv[1]](sys.argv[2])
